"""What ``orchestra top`` shows: one screen of a report and its history, as lines of text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from orchestra.cli.status_words import (
    ALARM,
    CLASSES,
    HEADING,
    NOTE,
    PLAIN,
    QUIET,
    TITLE,
    Line,
    batch_words,
    clean,
    engine_figures,
    figure,
    is_idle,
    job_rows,
    next_in_line,
    pause_words,
    plain_words,
    route_row,
    whose,
)
from orchestra.durations import format_duration
from orchestra.observe.history import History, engine_key, pool_key

__all__ = ["screen", "sparkline"]

MOST_POOLS = 8
MOST_ROWS = 6
"""Of routes, jobs and batches, those that want to be looked at first."""
_LEVELS = "▁▂▃▄▅▆▇█"
_BAR = 20
_LABEL, _CLASS, _VALUE = 12, 12, 9


def screen(
    report: Mapping[str, Any], history: History, *, title: str, width: int = 80, height: int | None = None
) -> list[Line]:
    """Return the lines of one screen, none longer than ``width``, in all no more than ``height``."""
    lines: list[Line] = [(title, TITLE)]
    for process in report["processes"]:
        try:
            lines += _process(process, history, width)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # Whatever listens there is none of ours: it must not hide the others.
            lines.append((f"pid {clean(process.get('pid', '?'))}", TITLE))
            lines.append(("  it tells nothing that we understand: `orchestra status --json` shows it", ALARM))
    if not report["processes"]:
        lines.append(("  nothing is running that can be seen: `orchestra status` says why that may be", QUIET))
    lines = [(_clipped(text, width), style) for text, style in lines]
    if height is not None and len(lines) > height:
        more = len(lines) - height + 1
        lines = [
            *lines[: height - 1],
            (_clipped(f"... {more} lines more: --pid N shows one program", width), QUIET),
        ]
    return lines


def sparkline(values: Sequence[float | None]) -> str:
    """Return values, none below 0, as one column each, up to the highest of them. Blank is where there is none."""
    most = max((value for value in values if value is not None), default=0.0)
    top = len(_LEVELS) - 1
    # whatever is not nothing is seen to be more than nothing
    return "".join(
        " " if value is None else _LEVELS[0 if value <= 0 else max(1, round(value / most * top))]
        for value in values
    )


def _process(process: Mapping[str, Any], history: History, width: int) -> Iterator[Line]:
    parts = [f"pid {int(process['pid'])}"]
    if process.get("instance", 1) != 1:
        parts[0] += f", instance {int(process['instance'])}"
    if process.get("program"):
        parts.append(clean(process["program"]))
    if process.get("uptime") is not None:
        parts.append(f"up {format_duration(process['uptime'])}")
    yield "  ".join(parts), TITLE
    if process.get("fault"):
        yield from _wrapped(clean(process["fault"], longest=200), width, ALARM, indent=2)
        return
    snapshot = process["snapshot"]
    pools = sorted(snapshot.get("pools", []), key=is_idle)
    for pool in pools[:MOST_POOLS]:
        yield from _pool(process, pool, history, width)
    if len(pools) > MOST_POOLS:
        yield f"  ... and {len(pools) - MOST_POOLS} accounts more, idle or later in line", QUIET
    for name, told in snapshot.get("local", {}).items():
        yield from _engine(process, name, told, history, width)
    yield from _rows("routes", _routes(snapshot.get("routes", {})), width)
    jobs = snapshot.get("jobs", {}).items()
    yield from _rows("jobs", [row for name, told in jobs for row in job_rows(name, told, pools)], width)
    batches = snapshot.get("batches", [])
    yield from _rows("open batches", [("", batch_words(batch), PLAIN) for batch in batches], width)


def _pool(process: Mapping[str, Any], pool: Mapping[str, Any], history: History, width: int) -> Iterator[Line]:
    key = pool_key(process, pool)
    yield f"  {whose(pool)}", HEADING
    yield from _history("waiting", (*key, "waiting"), history, width)
    yield from _history("under way", (*key, "in_use"), history, width)
    yield from _history("let go /s", (*key, "granted"), history, width)
    for name, told in pool.get("dimensions", {}).items():
        if told.get("limit") is not None and told.get("capacity"):
            yield _limit(plain_words(name), told), PLAIN
    if pool.get("paused") is not None:
        yield from _wrapped(pause_words(pool["paused"]), width, NOTE)
    if (trouble := (pool.get("shared") or {}).get("trouble")) is not None:
        yield from _wrapped(f"the shared budget cannot be used: {clean(trouble, longest=300)}", width, ALARM)
    if pool.get("head") is not None:
        yield from _wrapped(next_in_line(pool), width, NOTE)


def _limit(name: str, told: Mapping[str, Any]) -> str:
    money = "usd" in name
    free, capacity = max(0.0, told.get("available") or 0.0), told["capacity"]
    filled = min(_BAR, round(free / capacity * _BAR))
    bar = "█" * filled + "░" * (_BAR - filled)
    return f"    {name[:22]:<22}  {bar}  {figure(free, money)} of {figure(capacity, money)} free"


def _engine(
    process: Mapping[str, Any], name: str, told: Mapping[str, Any], history: History, width: int
) -> Iterator[Line]:
    state = str(told.get("state"))
    yield f"  local/{clean(name)}  {'not started' if state == 'unused' else clean(state)}", HEADING
    if state != "running":
        return
    key = engine_key(process, name)
    yield from _history("computing", (*key, "running"), history, width)
    yield from _history("waiting", (*key, "waiting"), history, width)
    for label, counter in (("output /s", "output_tokens"), ("prompt /s", "prefill_tokens")):
        yield (
            _row(label, "tokens", history.latest((*key, counter)), history.line((*key, counter), _room(width))),
            PLAIN,
        )
    yield from _wrapped("; ".join(_statistics(key, told, history)), width, PLAIN)
    for traffic in CLASSES:
        if figures := engine_figures(told, traffic):
            yield from _wrapped(f"{traffic}: {clean(figures, longest=200)}", width, QUIET)


def _statistics(key: tuple[Any, ...], told: Mapping[str, Any], history: History) -> Iterator[str]:
    blocks = told["blocks"]
    if (occupancy := told.get("occupancy")) is not None:
        yield f"{occupancy:.0%} of {figure(told['slots'])} slots filled"
    yield f"{figure(blocks['free'])} of {figure(blocks['total'])} cache blocks free"
    if (steps := history.latest((*key, "steps"))) is not None:
        yield f"{figure(steps)} steps/s"
    if (last := told.get("last_step_seconds")) is not None:
        yield f"the last took {format_duration(last)}"
    if (ratio := told.get("predicted_over_actual")) is not None:
        yield f"steps take {1 / ratio:.0%} of the time foreseen" if ratio else "no step was foreseen"
    for counter in ("displacements", "evictions"):
        if told.get(counter):
            yield f"{figure(told[counter])} {counter}"


def _history(label: str, key: tuple[Any, ...], history: History, width: int) -> Iterator[Line]:
    for traffic in CLASSES:
        line = history.line((*key, traffic), _room(width))
        yield _row(label, traffic, history.latest((*key, traffic)), line), PLAIN
        label = ""


def _row(label: str, what: str, value: float | None, line: Sequence[float | None]) -> str:
    return f"    {label:<{_LABEL}}{what:<{_CLASS}}{figure(value):>{_VALUE}}  {sparkline(line)}".rstrip()


def _room(width: int) -> int:
    return max(10, width - 4 - _LABEL - _CLASS - _VALUE - 2)


def _routes(routes: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    rows = [route_row(name, told) for name, told in routes.items()]
    return sorted(rows, key=lambda row: row[2] == PLAIN)  # those that are not well first


def _rows(title: str, rows: Sequence[tuple[str, str, str]], width: int) -> Iterator[Line]:
    if not rows:
        return
    yield f"  {title}", HEADING
    longest = min(30, max(len(name) for name, _, _ in rows))
    for name, told, style in rows[:MOST_ROWS]:
        yield from _wrapped(f"{name[:longest]:{longest}}  {told}" if longest else told, width, style)
    if len(rows) > MOST_ROWS:
        yield f"    ... and {len(rows) - MOST_ROWS} more: `orchestra status` tells of all", QUIET


def _wrapped(text: str, width: int, style: str, indent: int = 4) -> Iterable[Line]:
    lines = textwrap.wrap(text, max(20, width - indent), subsequent_indent="  ", drop_whitespace=True)
    return [(" " * indent + line, style) for line in lines]


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 3)]}..."
