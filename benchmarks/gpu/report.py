"""The table, and all that is in it as plain data."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from gpu.figures import Figure
from gpu.harness import Section

__all__ = ["in_short", "show", "summary"]

Line = tuple[Section, Figure]
_REHEARSED = "REHEARSAL on a CPU: nothing here was measured"


def summary(
    lines: Sequence[Line], beside: Mapping[str, Any], seconds: float, *, rehearsal: bool
) -> dict[str, Any]:
    """Return everything as plain data. ``ok``: nothing failed, and every target that was measured is met."""
    missed = [figure.what for _, figure in lines if figure.holds is False]
    failed = [figure.what for _, figure in lines if figure.error]
    return {
        "benchmark": "gpu-check",
        "rehearsal": rehearsal,
        **({"warning": _REHEARSED} if rehearsal else {}),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(seconds, 1),
        "machine": dict(beside.get("machine", {})),
        "ok": not missed and not failed,
        "missed": missed,
        "failed": failed,
        "figures": [{"section": section.name, **figure.as_told()} for section, figure in lines],
    }


def in_short(figure: Figure) -> str:
    """A figure on one line."""
    told = [figure.what, _measured(figure), _share(figure), _verdict(figure), figure.error or figure.note]
    return ", ".join(part for part in told if part)


def show(lines: Sequence[Line], result: Mapping[str, Any], out: TextIO) -> None:
    """Print the table, then what was missed and what failed."""
    rehearsal = result["rehearsal"]
    console = Console(file=out, width=170)
    machine = result["machine"]
    about = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "gpu")
    title = f"gpu-check: {machine.get('gpu', 'unknown GPU')} ({about}), {result['seconds']:.0f} s"
    table = Table(title=f"{_REHEARSED}\n{title}" if rehearsal else title, title_justify="left")
    table.add_column("section")
    table.add_column("what", overflow="fold")
    table.add_column("rehearsed, not measured" if rehearsal else "measured", justify="right")
    table.add_column("of what is possible", justify="right")
    table.add_column("asked")
    table.add_column("verdict")
    table.add_column("note", overflow="fold")
    before = ""
    for section, figure in lines:
        if section.title != before and before:
            table.add_section()
        table.add_row(
            "" if section.title == before else section.title,
            figure.what,
            _measured(figure),
            _share(figure),
            _asked(figure),
            _verdict(figure),
            figure.error or figure.note,
        )
        before = section.title
    console.print(table, markup=False)
    for told, names in (("target missed", result["missed"]), ("failed", result["failed"])):
        for name in names:
            console.print(f"{told}: {name}", markup=False)
    if rehearsal:
        console.print(_REHEARSED, markup=False)


def _measured(figure: Figure) -> str:
    return "" if figure.value is None else f"{_number(figure.value)} {figure.unit}"


def _share(figure: Figure) -> str:
    return "" if figure.share is None else f"{figure.share:.0%} of {figure.of}"


def _number(value: float) -> str:
    if value and abs(value) < 0.01:
        return f"{value:.1e}"
    return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def _asked(figure: Figure) -> str:
    target = figure.target
    if target is None:
        return ""
    as_share = figure.unit in ("GB/s", "tokens/s")  # a share of what is possible is asked of these
    bounds = ((">=", target.least), ("<=", target.most))
    return " ".join(f"{sign} {_bound(bound, as_share)}" for sign, bound in bounds if bound is not None)


def _bound(bound: float, as_share: bool) -> str:
    return f"{bound:.0%}" if as_share else f"{bound:g}"


def _verdict(figure: Figure) -> str:
    if figure.error:
        return "FAILED"
    if figure.holds is not None:
        return "pass" if figure.holds else "MISS"
    if figure.value is None:
        return "rehearsed" if figure.rehearsed and not figure.note else "left out"
    return ""
