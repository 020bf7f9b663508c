"""What ``orchestra status`` says: a report of plain values, as lines of text.

Names come from programs, and programs have some from their own users: what could steer a terminal is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from orchestra.cli.job_words import AN_HOUR, STAGES, held_by, instant, outlet_lines, stalled
from orchestra.durations import format_duration

__all__ = ["Line", "describe"]

Line = tuple[str, str]
"""A line, and its style in rich's words."""

MOST_POOLS = 20
MOST_BATCHES = 5
_LONGEST_NAME = 80
_PLAIN, _TITLE, _HEADING, _QUIET, _NOTE, _ALARM = "", "bold", "bold", "dim", "yellow", "red"
_CLASSES = ("interactive", "bulk")
_WINDOWS = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "day"}
_BREAKERS = {
    "closed": ("healthy", _PLAIN),
    "open": ("open: it kept failing, and is left alone for a moment", _ALARM),
    "half-open": ("half-open: one call tries whether it is back", _NOTE),
}


def describe(report: Mapping[str, Any], *, width: int = 100) -> Iterator[Line]:
    """Yield the report in at most ``width`` columns, as far as names allow."""
    for number, process in enumerate(report["processes"]):
        if number:
            yield "", _PLAIN
        yield from _told(process, width)
    for number, account in enumerate(report["accounts"]):
        if number or report["processes"]:
            yield "", _PLAIN
        yield from _account(account, width)


def _told(process: Mapping[str, Any], width: int) -> list[Line]:
    try:
        return [*_process(process, width)]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # Whatever listens there is none of ours: it must not hide the others.
        pid = _clean(process.get("pid", "?"))
        return [(f"pid {pid}", _TITLE), ("  it tells nothing that we understand: --json shows it", _ALARM)]


def _process(process: Mapping[str, Any], width: int) -> Iterator[Line]:
    title = [f"pid {int(process['pid'])}"]
    if process.get("instance", 1) != 1:
        title[0] += f", instance {int(process['instance'])}"
    if process.get("program"):
        title.append(_clean(process["program"]))
    if process.get("uptime") is not None:
        title.append(f"up {format_duration(process['uptime'])}")
    if process.get("config"):
        title.append(_clean(process["config"], longest=200))
    yield "  ".join(title), _TITLE
    if process.get("fault"):
        yield f"  {_clean(process['fault'], longest=200)}", _ALARM
        return
    snapshot = process["snapshot"]
    pools = snapshot.get("pools", [])
    shown = pools if len(pools) <= MOST_POOLS else sorted(pools, key=_is_idle)[:MOST_POOLS]
    if not pools:
        yield "  no call to a provider so far", _QUIET
    for pool in shown:
        yield "", _PLAIN
        yield from _pool(pool, width)
    if len(pools) > len(shown):
        yield f"  ... and {len(pools) - len(shown)} accounts more: --json tells of all", _QUIET
    yield from _section("routes", [_route(name, state) for name, state in snapshot.get("routes", {}).items()])
    yield from _section(
        "engines", [row for name, told in snapshot.get("local", {}).items() for row in _engine(name, told)]
    )
    yield from _section(
        "jobs", [row for name, told in snapshot.get("jobs", {}).items() for row in _job(name, told, pools)]
    )
    yield from _batches(snapshot.get("batches", []))


def _section(title: str, rows: Sequence[tuple[str, str, str]]) -> Iterator[Line]:
    if rows:
        yield "", _PLAIN
        yield f"  {title}", _HEADING
        longest = min(40, max(len(name) for name, _, _ in rows))
        for name, told, style in rows:
            yield f"    {name:{longest}}  {told}", style


# An account's limits, and who waits for them


def _pool(pool: Mapping[str, Any], width: int) -> Iterator[Line]:
    yield f"  {_whose(pool)}", _HEADING
    yield from _limits(pool.get("dimensions", {}), width)
    rows = [
        [name, *(_number(pool.get(column, {}).get(name, 0)) for column in ("waiting", "in_use", "granted"))]
        for name in _CLASSES
    ]
    yield from _table(["calls", "waiting", "under way", "let go"], rows)
    spent = [_amount(name, total) for name, total in pool.get("spent", {}).items() if total]
    if spent:
        yield f"    spent so far: {', '.join(spent)}", _QUIET
    if (shared := pool.get("shared")) is not None:
        held = [_amount(name, stock) for name, stock in shared.get("slice", {}).items()]
        processes = shared.get("processes", 0)
        sharing = "1 process holds" if processes == 1 else f"{processes} processes hold"
        yield f"    shared: {sharing} a slice; this one's: {', '.join(held) or 'nothing'}", _QUIET
        if shared.get("trouble"):
            yield f"    the shared budget cannot be used: {_clean(shared['trouble'], longest=300)}", _ALARM
    if pool.get("paused") is not None:
        yield f"    {_pause(pool['paused'])}", _NOTE
    if pool.get("head") is not None:
        yield f"    {_head(pool)}", _NOTE


def _whose(pool: Mapping[str, Any]) -> str:
    models = ", ".join(filter(None, pool.get("models", []))) or "any model"
    whose = f"{_clean(pool.get('provider', '?'))}  {_clean(models)}  key {_clean(pool.get('key', '?'))}"
    kind = pool.get("kind", "online")
    return whose if kind == "online" else f"{whose}  {_clean(kind)}"


def _limits(dimensions: Mapping[str, Mapping[str, Any]], width: int) -> Iterator[Line]:
    rows = [_limit(_words(name), told) for name, told in dimensions.items() if told.get("limit") is not None]
    if not rows:
        yield "    no limit is known", _QUIET
        return
    header = ["limit", "", "at once", "used", "reserved", "available", "bulk leaves", ""]
    for gap in ("  ", " "):
        table = list(_table(header, rows, gap))
        if all(len(line) <= width for line, _ in table):
            yield from table
            return
    for name, limit, *numbers, source in rows:
        at_once, used, reserved, available, leaves = numbers
        yield f"    {name}: {limit}, {at_once} at once{f', {source}' if source else ''}", _PLAIN
        yield f"      used {used}, reserved {reserved}", _PLAIN
        yield f"      available {available}, bulk leaves {leaves}", _PLAIN


def _limit(name: str, told: Mapping[str, Any]) -> list[str]:
    money = "usd" in name
    window = told.get("window")
    unit = (_WINDOWS.get(window) or format_duration(window)) if window else ""
    per = f"/{unit}" if unit else ""
    keys = ("capacity", "used", "reserved", "available", "interactive_reserve")
    numbers = [_number(told.get(key), money) for key in keys]
    source = "set" if told.get("source") == "configured" else _clean(told.get("source") or "")
    name = name.removesuffix(f" ({source})").removesuffix(f" per {unit}")
    return [name, _number(told["limit"], money) + per, *numbers, source]


def _pause(paused: Mapping[str, Any]) -> str:
    left = paused.get("seconds")
    return f"paused ({_clean(paused.get('reason') or 'no reason told')})" + (
        "" if left is None else f", for {format_duration(left)} more"
    )


def _head(pool: Mapping[str, Any]) -> str:
    """Say why the call whose turn it is waits, and until when."""
    head, waiting = pool["head"], pool.get("waiting", {})
    job = f" (job {_clean(head['job'])})" if head.get("job") else ""
    reason, left = _words(head.get("waits_for") or ""), head.get("seconds")
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
        text += f"; {_number(behind)} bulk behind it"
    return f"the next {_clean(head.get('traffic', ''))} call{job} {text}"


def _is_idle(pool: Mapping[str, Any]) -> bool:
    return not any(
        count for column in ("waiting", "in_use") for count in pool.get(column, {}).values()
    ) and not pool.get("paused")


def _account(account: Mapping[str, Any], width: int) -> Iterator[Line]:
    yield f"shared budget {_clean(account['file'], longest=200)}", _TITLE
    if account.get("fault"):
        yield f"  {_clean(account['fault'], longest=300)}", _ALARM
        return
    yield f"  {_whose(account)}", _HEADING
    yield from _limits(account["dimensions"], width)
    holders = account["holders"]
    if not holders:
        yield "    no process holds any of it", _QUIET
    for holder in holders:
        held = [_amount(name, amount) for name, amount in holder["held"].items() if amount]
        text = f"    pid {holder['pid']} holds {', '.join(held) or 'nothing'}"
        wants = [_amount(name, amount) for name, amount in holder["wants"].items() if amount]
        yield text + (f", and waits for {', '.join(wants)} more" if wants else ""), _PLAIN


# Routes, engines, jobs


def _route(name: str, told: Any) -> tuple[str, str, str]:
    route = (
        told if isinstance(told, Mapping) else {"state": told}
    )  # a program of an earlier version tells the state
    state = str(route.get("state"))
    said, style = _BREAKERS.get(state, (_clean(state), _PLAIN))
    if (wait := route.get("next_try_in")) is not None:
        said += f"; next try in {format_duration(wait)}"
    if (paused := route.get("paused_for")) is not None:
        said, style = f"{said}; its account is spent, and is asked again in {format_duration(paused)}", _NOTE
    if fault := route.get("fault"):
        said += f" ({_clean(str(fault), longest=200)})"
    return _clean(name), said, style


def _engine(name: str, told: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    state = str(told.get("state"))
    parts = ["not started" if state == "unused" else state]
    for title, key in (("computing", "running"), ("waiting", "waiting")):
        if isinstance(counts := told.get(key), Mapping):
            parts.append(f"{title} " + " and ".join(f"{_number(counts.get(one, 0))} {one}" for one in _CLASSES))
    if isinstance(blocks := told.get("blocks"), Mapping):
        parts.append(f"{_number(blocks.get('free'))} of {_number(blocks.get('total'))} cache blocks free")
    yield f"local/{_clean(name)}", _clean("; ".join(parts), longest=200), _PLAIN
    for traffic in _CLASSES:
        if figures := _figures(told, traffic):
            yield "", f"{traffic}: {_clean(figures, longest=200)}", _QUIET


def _figures(told: Mapping[str, Any], traffic: str) -> str:
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


def _job(name: str, told: Mapping[str, Any], pools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    from orchestra.jobs import Progress

    progress = stalled(Progress.from_plain(told), held_by(pools, name))
    if progress.waiting:
        yield _clean(name), f"{progress}; waiting: {_clean(progress.waiting, longest=300)}", _NOTE
    else:
        yield _clean(name), str(progress), _PLAIN
    if len(progress.outlets) > 1 or progress.batches:
        for line in outlet_lines(progress):
            yield "", _clean(line, longest=200), _QUIET


def _batches(batches: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    """Say which batches are open, by account."""
    if not batches:
        return
    yield "", _PLAIN
    yield "  open batches", _HEADING
    accounts: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for batch in batches:
        accounts.setdefault((str(batch["provider"]), str(batch["account"])), []).append(batch)
    for (provider, key), ours in accounts.items():
        riding = sum(batch["riding"] for batch in ours)
        count = "1 batch" if len(ours) == 1 else f"{len(ours)} batches"
        yield f"    {_clean(provider)}  key {_clean(key)}: {count}, {riding:,} lines on their way", _PLAIN
        for batch in ours[:MOST_BATCHES]:
            yield f"      {_batch(batch)}", _QUIET
        if len(ours) > MOST_BATCHES:
            yield f"      ... and {len(ours) - MOST_BATCHES} more: --json tells of all", _QUIET


def _batch(batch: Mapping[str, Any]) -> str:
    stage = STAGES.get(str(batch["state"]), str(batch["state"]))
    if batch["state"] == "submitted" and batch.get("status"):
        stage = f"{stage} ({batch['status']})"
    text = f"{batch['route']}: {batch['riding']:,} of {batch['lines']:,} lines, {stage}"
    text += f", {format_duration(batch['age'])} old, job {batch['job']}"
    if batch.get("deadline") is not None:
        soon = batch["deadline"] - time.time() < AN_HOUR
        text += f", wanted by {instant(batch['deadline'], exact=soon)}"
    return _clean(text, longest=300)


# Words and numbers


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], gap: str = "  ") -> Iterator[Line]:
    """Yield the rows in columns: names, and what has no title, to the left; numbers to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for number, line in enumerate(lines):
        cells = [
            f"{cell:>{width}}" if column and header[column] else f"{cell:<{width}}"
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "    " + gap.join(cells).rstrip(), _PLAIN if number else _QUIET


def _words(name: str) -> str:
    return _clean(name.replace("_", " "))


def _amount(name: str, amount: float) -> str:
    if name == "usd":
        return _number(amount, money=True)
    unit = "slots" if name == "concurrency" else _words(name)
    return f"{_number(amount)} {unit.removesuffix('s') if amount == 1 else unit}"


def _number(value: Any, money: bool = False) -> str:
    if not isinstance(value, int | float):
        return "-"
    if money:
        return f"${value:,.2f}" if value >= 1 or not value else f"${value:.2g}"
    whole = abs(value) >= 100 or abs(value - round(value)) < 0.05
    return f"{round(value):,}" if whole else f"{value:,.1f}"


def _clean(text: Any, *, longest: int = _LONGEST_NAME) -> str:
    """Return the text as a terminal may see it: what is not printable could steer it."""
    text = "".join(sign if sign.isprintable() else "?" for sign in str(text))
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
