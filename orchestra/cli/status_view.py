"""What ``orchestra status`` says: a report of plain values, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    columns,
    engine_figures,
    figure,
    in_units,
    is_idle,
    job_rows,
    next_in_line,
    pause_words,
    plain_words,
    route_row,
    whose,
)
from orchestra.durations import format_duration

__all__ = ["Line", "describe"]

MOST_POOLS = 20
MOST_BATCHES = 5
_WINDOWS = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "day"}


def describe(report: Mapping[str, Any], *, width: int = 100) -> Iterator[Line]:
    """Yield the report in at most ``width`` columns, as far as names allow."""
    for number, process in enumerate(report["processes"]):
        if number:
            yield "", PLAIN
        yield from _told(process, width)
    for number, account in enumerate(report["accounts"]):
        if number or report["processes"]:
            yield "", PLAIN
        yield from _account(account, width)


def _told(process: Mapping[str, Any], width: int) -> list[Line]:
    try:
        return [*_process(process, width)]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # Whatever listens there is none of ours: it must not hide the others.
        pid = clean(process.get("pid", "?"))
        return [(f"pid {pid}", TITLE), ("  it tells nothing that we understand: --json shows it", ALARM)]


def _process(process: Mapping[str, Any], width: int) -> Iterator[Line]:
    title = [f"pid {int(process['pid'])}"]
    if process.get("instance", 1) != 1:
        title[0] += f", instance {int(process['instance'])}"
    if process.get("program"):
        title.append(clean(process["program"]))
    if process.get("uptime") is not None:
        title.append(f"up {format_duration(process['uptime'])}")
    if process.get("config"):
        title.append(clean(process["config"], longest=200))
    yield "  ".join(title), TITLE
    if process.get("fault"):
        yield f"  {clean(process['fault'], longest=200)}", ALARM
        return
    snapshot = process["snapshot"]
    pools = snapshot.get("pools", [])
    shown = pools if len(pools) <= MOST_POOLS else sorted(pools, key=is_idle)[:MOST_POOLS]
    if not pools:
        yield "  no call to a provider so far", QUIET
    for pool in shown:
        yield "", PLAIN
        yield from _pool(pool, width)
    if len(pools) > len(shown):
        yield f"  ... and {len(pools) - len(shown)} accounts more: --json tells of all", QUIET
    yield from _section("routes", [route_row(name, state) for name, state in snapshot.get("routes", {}).items()])
    yield from _section(
        "engines", [row for name, told in snapshot.get("local", {}).items() for row in _engine(name, told)]
    )
    yield from _section(
        "jobs", [row for name, told in snapshot.get("jobs", {}).items() for row in job_rows(name, told, pools)]
    )
    yield from _batches(snapshot.get("batches", []))


def _section(title: str, rows: Sequence[tuple[str, str, str]]) -> Iterator[Line]:
    if rows:
        yield "", PLAIN
        yield f"  {title}", HEADING
        longest = min(40, max(len(name) for name, _, _ in rows))
        for name, told, style in rows:
            yield f"    {name:{longest}}  {told}", style


# An account's limits, and who waits for them


def _pool(pool: Mapping[str, Any], width: int) -> Iterator[Line]:
    yield f"  {whose(pool)}", HEADING
    yield from _limits(pool.get("dimensions", {}), width)
    rows = [
        [name, *(figure(pool.get(column, {}).get(name, 0)) for column in ("waiting", "in_use", "granted"))]
        for name in CLASSES
    ]
    yield from columns(["calls", "waiting", "under way", "let go"], rows)
    spent = [in_units(name, total) for name, total in pool.get("spent", {}).items() if total]
    if spent:
        yield f"    spent so far: {', '.join(spent)}", QUIET
    if (shared := pool.get("shared")) is not None:
        held = [in_units(name, stock) for name, stock in shared.get("slice", {}).items()]
        processes = shared.get("processes", 0)
        sharing = "1 process holds" if processes == 1 else f"{processes} processes hold"
        yield f"    shared: {sharing} a slice; this one's: {', '.join(held) or 'nothing'}", QUIET
        if shared.get("trouble"):
            yield f"    the shared budget cannot be used: {clean(shared['trouble'], longest=300)}", ALARM
    if pool.get("paused") is not None:
        yield f"    {pause_words(pool['paused'])}", NOTE
    if pool.get("head") is not None:
        yield f"    {next_in_line(pool)}", NOTE


def _limits(dimensions: Mapping[str, Mapping[str, Any]], width: int) -> Iterator[Line]:
    rows = [_limit(plain_words(name), told) for name, told in dimensions.items() if told.get("limit") is not None]
    if not rows:
        yield "    no limit is known", QUIET
        return
    header = ["limit", "", "at once", "used", "reserved", "available", "bulk leaves", ""]
    for gap in ("  ", " "):
        table = list(columns(header, rows, gap))
        if all(len(line) <= width for line, _ in table):
            yield from table
            return
    for name, limit, *numbers, source in rows:
        at_once, used, reserved, available, leaves = numbers
        yield f"    {name}: {limit}, {at_once} at once{f', {source}' if source else ''}", PLAIN
        yield f"      used {used}, reserved {reserved}", PLAIN
        yield f"      available {available}, bulk leaves {leaves}", PLAIN


def _limit(name: str, told: Mapping[str, Any]) -> list[str]:
    money = "usd" in name
    window = told.get("window")
    unit = (_WINDOWS.get(window) or format_duration(window)) if window else ""
    per = f"/{unit}" if unit else ""
    keys = ("capacity", "used", "reserved", "available", "interactive_reserve")
    numbers = [figure(told.get(key), money) for key in keys]
    source = "set" if told.get("source") == "configured" else clean(told.get("source") or "")
    name = name.removesuffix(f" ({source})").removesuffix(f" per {unit}")
    return [name, figure(told["limit"], money) + per, *numbers, source]


def _account(account: Mapping[str, Any], width: int) -> Iterator[Line]:
    yield f"shared budget {clean(account['file'], longest=200)}", TITLE
    if account.get("fault"):
        yield f"  {clean(account['fault'], longest=300)}", ALARM
        return
    yield f"  {whose(account)}", HEADING
    yield from _limits(account["dimensions"], width)
    holders = account["holders"]
    if not holders:
        yield "    no process holds any of it", QUIET
    for holder in holders:
        held = [in_units(name, amount) for name, amount in holder["held"].items() if amount]
        text = f"    pid {holder['pid']} holds {', '.join(held) or 'nothing'}"
        wants = [in_units(name, amount) for name, amount in holder["wants"].items() if amount]
        yield text + (f", and waits for {', '.join(wants)} more" if wants else ""), PLAIN


# Routes, engines, jobs


def _engine(name: str, told: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    state = str(told.get("state"))
    parts = ["not started" if state == "unused" else state]
    for title, key in (("computing", "running"), ("waiting", "waiting")):
        if isinstance(counts := told.get(key), Mapping):
            parts.append(f"{title} " + " and ".join(f"{figure(counts.get(one, 0))} {one}" for one in CLASSES))
    if isinstance(blocks := told.get("blocks"), Mapping):
        parts.append(f"{figure(blocks.get('free'))} of {figure(blocks.get('total'))} cache blocks free")
    if {"device", "slots", "step_tokens"} <= told.keys():
        sizes = f"{figure(told['slots'])} at once, {figure(told['step_tokens'])} tokens a step"
        parts.append(f"on {told['device']}: up to {sizes}")
    yield f"local/{clean(name)}", clean("; ".join(parts), longest=200), PLAIN
    for traffic in CLASSES:
        if figures := engine_figures(told, traffic):
            yield "", f"{traffic}: {clean(figures, longest=200)}", QUIET


def _batches(batches: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    """Say which batches are open, by account."""
    if not batches:
        return
    yield "", PLAIN
    yield "  open batches", HEADING
    accounts: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for batch in batches:
        accounts.setdefault((str(batch["provider"]), str(batch["account"])), []).append(batch)
    for (provider, key), ours in accounts.items():
        riding = sum(batch["riding"] for batch in ours)
        count = "1 batch" if len(ours) == 1 else f"{len(ours)} batches"
        yield f"    {clean(provider)}  key {clean(key)}: {count}, {riding:,} lines on their way", PLAIN
        for batch in ours[:MOST_BATCHES]:
            yield f"      {batch_words(batch)}", QUIET
        if len(ours) > MOST_BATCHES:
            yield f"      ... and {len(ours) - MOST_BATCHES} more: --json tells of all", QUIET
