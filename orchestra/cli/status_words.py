"""The words and numbers that ``orchestra status`` and ``orchestra top`` share.

Names come from programs, and programs have some from their own users: what could steer a terminal is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from orchestra.cli.job_words import AN_HOUR, STAGES, instant, outlet_lines, within_limits
from orchestra.durations import format_duration

__all__ = [
    "ALARM",
    "CLASSES",
    "HEADING",
    "NOTE",
    "PLAIN",
    "QUIET",
    "TITLE",
    "Line",
    "batch_words",
    "clean",
    "columns",
    "engine_figures",
    "figure",
    "in_units",
    "is_idle",
    "job_rows",
    "next_in_line",
    "pause_words",
    "plain_words",
    "route_row",
    "whose",
]

Line = tuple[str, str]
"""A line, and its style in rich's words."""

_LONGEST_NAME = 80
PLAIN, TITLE, HEADING, QUIET, NOTE, ALARM = "", "bold", "bold", "dim", "yellow", "red"
CLASSES = ("interactive", "bulk")
_BREAKERS = {
    "closed": ("healthy", PLAIN),
    "open": ("open: it kept failing, and is left alone for a moment", ALARM),
    "half-open": ("half-open: one call tries whether it is back", NOTE),
}


def whose(pool: Mapping[str, Any]) -> str:
    """Say whose limits a pool holds."""
    models = ", ".join(filter(None, pool.get("models", []))) or "any model"
    whose = f"{clean(pool.get('provider', '?'))}  {clean(models)}  key {clean(pool.get('key', '?'))}"
    kind = pool.get("kind", "online")
    return whose if kind == "online" else f"{whose}  {clean(kind)}"


def pause_words(paused: Mapping[str, Any]) -> str:
    """Say why nothing is let go, and for how long."""
    left = paused.get("seconds")
    return f"paused ({clean(paused.get('reason') or 'no reason told')})" + (
        "" if left is None else f", for {format_duration(left)} more"
    )


def next_in_line(pool: Mapping[str, Any]) -> str:
    """Say why the call whose turn it is waits, and until when."""
    head, waiting = pool["head"], pool.get("waiting", {})
    job = f" (job {clean(head['job'])})" if head.get("job") else ""
    reason, left = plain_words(head.get("waits_for") or ""), head.get("seconds")
    if pool.get("paused") is not None:
        text = "waits for the pause to end"
    elif reason:
        text = f"waits for {reason}"
    else:
        text = "is about to go"
    if left is not None:
        text += f", about {format_duration(left)}"
    elif pool.get("paused") is None and pool.get("shared") is not None:
        text += ", which the shared budget gives when there is some"
    elif pool.get("paused") is None and reason.startswith("concurrency"):
        text += ", until a call under way ends"
    behind = waiting.get("bulk", 0)
    if head.get("traffic") == "interactive" and behind:
        text += f"; {figure(behind)} bulk behind it"
    return f"the next {clean(head.get('traffic', ''))} call{job} {text}"


def is_idle(pool: Mapping[str, Any]) -> bool:
    """Return whether nothing waits, is under way, or is paused."""
    return not any(
        count for column in ("waiting", "in_use") for count in pool.get(column, {}).values()
    ) and not pool.get("paused")


def route_row(name: str, told: Any) -> tuple[str, str, str]:
    """Return a route's name, how it is, and the style of that."""
    route = (
        told if isinstance(told, Mapping) else {"state": told}
    )  # a program of an earlier version tells the state
    state = str(route.get("state"))
    said, style = _BREAKERS.get(state, (clean(state), PLAIN))
    if (wait := route.get("next_try_in")) is not None:
        said += f"; next try in {format_duration(wait)}"
    if (paused := route.get("paused_for")) is not None:
        said, style = f"{said}; its account is spent, and is asked again in {format_duration(paused)}", NOTE
    if fault := route.get("fault"):
        said += f" ({clean(str(fault), longest=200)})"
    return clean(name), said, style


def engine_figures(told: Mapping[str, Any], traffic: str) -> str:
    """Say how quick an engine was of late for a class, and what its prefix cache spared it."""
    parts = []
    for title, key in (("first token after", "ttft"), ("the next ones every", "per_token")):
        spread = told.get(key, {}).get(traffic, {})
        if spread.get("p50") is not None:
            half, most = format_duration(spread["p50"]), format_duration(spread["p95"])
            parts.append(f"{title} {half} (95 % within {most})")
    if rate := told.get("cache_hit_rate", {}).get(traffic):
        parts.append(f"{rate:.0%} of prompts cached")
    return "; ".join(parts)


def job_rows(
    name: str, told: Mapping[str, Any], pools: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str, str]]:
    """Yield how far a job is: a name, what is said of it, and the style of that."""
    from orchestra.jobs import Progress

    progress = within_limits(Progress.from_plain(told), pools, name)
    if progress.waiting:
        yield clean(name), f"{progress}; waiting: {clean(progress.waiting, longest=300)}", NOTE
    else:
        yield clean(name), str(progress), PLAIN
    if len(progress.outlets) > 1 or progress.batches:
        for line in outlet_lines(progress):
            yield "", clean(line, longest=200), QUIET


def batch_words(batch: Mapping[str, Any]) -> str:
    """Say what rides in an open batch, and how far it is."""
    stage = STAGES.get(str(batch["state"]), str(batch["state"]))
    if batch["state"] == "submitted" and batch.get("status"):
        stage = f"{stage} ({batch['status']})"
    text = f"{batch['route']}: {batch['riding']:,} of {batch['lines']:,} lines, {stage}"
    text += f", {format_duration(batch['age'])} old, job {batch['job']}"
    if batch.get("deadline") is not None:
        soon = batch["deadline"] - time.time() < AN_HOUR
        text += f", wanted by {instant(batch['deadline'], exact=soon)}"
    return clean(text, longest=300)


def columns(header: Sequence[str], rows: Iterable[Sequence[str]], gap: str = "  ") -> Iterator[Line]:
    """Yield the rows in columns: names, and what has no title, to the left; numbers to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for number, line in enumerate(lines):
        cells = [
            f"{cell:>{width}}" if column and header[column] else f"{cell:<{width}}"
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "    " + gap.join(cells).rstrip(), PLAIN if number else QUIET


def plain_words(name: str) -> str:
    """Return a name of ours as people write it."""
    return clean(name.replace("_", " "))


def in_units(name: str, amount: float) -> str:
    """Return an amount of what a limit counts."""
    if name == "usd":
        return figure(amount, money=True)
    unit = "slots" if name == "concurrency" else plain_words(name)
    return f"{figure(amount)} {unit.removesuffix('s') if amount == 1 else unit}"


def figure(value: Any, money: bool = False) -> str:
    """Return a number with as many digits as one wants to read."""
    if not isinstance(value, int | float):
        return "-"
    if money:
        return f"${value:,.2f}" if value >= 1 or not value else f"${value:.2g}"
    whole = abs(value) >= 100 or abs(value - round(value)) < 0.05
    return f"{round(value):,}" if whole else f"{value:,.1f}"


def clean(text: Any, *, longest: int = _LONGEST_NAME) -> str:
    """Return the text as a terminal may see it: what is not printable could steer it."""
    text = "".join(sign if sign.isprintable() else "?" for sign in str(text))
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
