"""What ``orchestra simulate`` says: its findings as a page of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from orchestra.cli.status_words import clean
from orchestra.durations import format_duration
from orchestra.jobs import format_usd
from orchestra.simulate.clock_time import format_clock_time

if TYPE_CHECKING:
    from rich.table import Table

    from orchestra.simulate.findings import Findings, JobFindings, OutletFindings, PoolFindings

__all__ = ["show"]

_WIDTH = 80
_FULL = 0.95
_WORDS = {"cancelled": "given up, since the deadline of their job had passed"}
_VIA = {"sync": "at once", "batch": "batches", "local": "engine"}


def show(found: Findings, origin: str) -> None:
    """Print ``found``; ``origin`` is where the settings are from."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.width = _WIDTH

    def say(text: str, style: str = "") -> None:
        for line in wrap(text, _WIDTH) or [""]:
            console.print(Text(line, style))

    took = format_duration(found.cpu_seconds)
    say(f"{format_duration(found.seconds)} of {clean(origin)}, simulated in {took} of CPU time", "bold")
    for name, told in found.about.items():
        say(f"{name}: {clean(told)}", "dim")
    if found.is_interrupted:
        say("It was interrupted: what follows is what had happened by then.", "yellow")
    say("")
    console.print(_classes(found))
    for line in _reasons(found):
        say(line)
    if found.outlets:
        say("")
        console.print(_outlets(found.outlets))
        for name, share in found.engines.items():
            say(f"engine {clean(name)}: busy {share:.0%} of the time")
        say(_cost(found))
    if found.jobs:
        say("")
        console.print(_jobs(found.jobs))
        for job in found.jobs:
            if job.stopped:
                say(f"{clean(job.name)} stopped: {clean(job.stopped)}", "red")
        if found.missed:
            say(f"{found.missed} of {len(found.jobs)} jobs did not keep their deadline.", "red")
    if found.pools:
        say("")
        say("Use of limits by the hour, in tenths of what each allows; * is nearly all", "bold")
        hour = int(found.starts_at // 3600) % 24
        say(f"from {hour:02d}:00 UTC" if hour else "from 00:00", "dim")
        for pool in found.pools:
            console.print(Text(_use(pool)))


def _classes(found: Findings) -> Table:
    table = _plain(
        "class", "calls", "answered", "refused", "failed", "open", "wait p50", "p95", "p99", "max", gap=1
    )
    for name, one in found.classes.items():
        waits = ["-"] * 4
        if one.waits is not None:
            waits = [_time(wait) for wait in (one.waits.p50, one.waits.p95, one.waits.p99, one.longest_wait)]
        refused, failed = sum(one.refusals.values()), sum(one.errors.values())
        counts = (one.calls, one.answered, refused, failed, one.unfinished)
        table.add_row(name, *(f"{count}" for count in counts), *waits)
    return table


def _reasons(found: Findings) -> Iterator[str]:
    for name, one in found.classes.items():
        for what, reasons in (("refused", one.refusals), ("failed", one.errors), ("made again", one.attempts)):
            for reason, count in sorted(reasons.items(), key=lambda pair: -pair[1]):
                yield f"{name}: {count} {what}: {_WORDS.get(reason, clean(reason)) or 'for no reason told'}"


def _outlets(outlets: Sequence[OutletFindings]) -> Table:
    table = _plain("answered by", "", "calls", "share", "tokens in", "out", "share", "cost")
    calls = sum(outlet.calls for outlet in outlets) or 1
    tokens = sum(outlet.input_tokens + outlet.output_tokens for outlet in outlets) or 1
    for one in outlets:
        table.add_row(
            clean(one.route)[:28],
            _VIA.get(one.via, one.via),
            f"{one.calls}",
            f"{one.calls / calls:.0%}",
            _count(one.input_tokens),
            _count(one.output_tokens),
            f"{(one.input_tokens + one.output_tokens) / tokens:.0%}",
            "?" if one.usd is None and one.via != "local" else format_usd(one.usd or 0.0),
        )
    return table


def _cost(found: Findings) -> str:
    unpriced = [one.route for one in found.outlets if one.usd is None and one.via != "local"]
    if unpriced and not found.usd:
        return "What it costs is not known: the settings have no prices ([[providers.NAME.prices]])."
    engines = f", {format_usd(found.engine_usd)} of it for engines" if found.engine_usd else ""
    told = f"It costs {format_usd(found.usd)}{engines}"
    if unpriced:
        told += f", without {', '.join(clean(route) for route in unpriced)}, whose price is not known"
    if all(one.usd_sync is not None for one in found.outlets):
        told += f"; all of it answered at once by providers, {format_usd(found.usd_sync)}"
    return f"{told}."


def _jobs(jobs: Sequence[JobFindings]) -> Table:
    table = _plain("job", "came", "lines", "answered", "batched", "took", "deadline", "")
    for one in jobs:
        missed = f"missed by {one.expired} lines" if one.expired else "not kept"
        verdict = {True: "kept", False: missed, None: ""}[one.kept]
        table.add_row(
            clean(one.name)[:20],
            format_clock_time(one.at),
            f"{one.lines}",
            f"{one.done}",
            f"{one.batched}",
            "not over" if one.seconds is None else format_duration(one.seconds),
            "-" if one.deadline is None else format_duration(one.deadline),
            verdict,
        )
    return table


def _use(pool: PoolFindings) -> str:
    digits = "".join("*" if share >= _FULL else str(min(9, int(share * 10))) for share in pool.hours)
    days = [digits[at : at + 24] for at in range(0, len(digits), 24)]
    limit = (
        pool.limit.replace("_per_minute", "/min").replace("_per_day", "/day").replace("max_concurrency", "at once")
    )
    name = f"{clean(pool.pool)[:20]} {limit} {_count(pool.allowed)}"
    return f"{name:42.42} " + f"\n{' ' * 43}".join(days)


def _time(seconds: float) -> str:
    return "0" if seconds < 0.0005 else format_duration(seconds)


def _count(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.1f}M"
    return f"{value / 1e3:.0f}k" if value >= 10_000 else f"{value:g}"


def _plain(*names: str, gap: int = 2) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for at, name in enumerate(names):
        table.add_column(name, justify="left" if at == 0 or not name else "right", no_wrap=True)
    return table
