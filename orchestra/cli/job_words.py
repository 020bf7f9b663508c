"""What commands say of a job: where its lines went, what that cost, what is still on its way. Text, line by line.

Instants are unix times; ``now`` is brought by the caller.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestra.durations import format_duration

if TYPE_CHECKING:
    from orchestra.budget import CostRange
    from orchestra.config import Config
    from orchestra.jobs import (
        BatchRecord,
        Cancellation,
        Deletion,
        Forecast,
        OpenBatch,
        OutletTally,
        Progress,
        Survey,
        Way,
    )

__all__ = [
    "AN_HOUR",
    "STAGES",
    "batch_lines",
    "cancellation_lines",
    "cost_lines",
    "deletion_lines",
    "expected_end",
    "forecast_lines",
    "held_by",
    "instant",
    "outlet_lines",
    "record_lines",
    "retriable",
    "stalled",
    "within_limits",
]

AN_HOUR = 3600.0
"""Seconds: of a deadline that is closer the seconds are told."""
_HELD = 60.0
"""Seconds for which a limit must hold the next call to be said to hold a job: others are over in a moment."""
_MOST_BATCHES = 8
STAGES = {
    "open": "being filled",
    "sealed": "about to be handed in",
    "uploaded": "uploaded",
    "creating": "being created",
    "submitted": "at the provider",
    "ended": "ended",
    "abandoned": "given up",
}


def outlet_lines(progress: Progress) -> Iterator[str]:
    """Say what each way of answering did."""
    from orchestra.jobs import format_usd

    rows = []
    for outlet in progress.outlets:
        lines = counted(outlet.lines, "line", "lines")
        failed = f" ({outlet.failed:,} failed)" if outlet.failed else ""
        tokens = f"{outlet.input_tokens:,} tokens in, {outlet.output_tokens:,} out"
        machine = progress.usd_per_million.get(outlet.route or "")
        if machine is not None:
            money = f"{format_usd(machine)} per million tokens of machine time"
        elif outlet.via == "local":
            money = ""
        elif outlet.unpriced and not outlet.usd:
            money = "price unknown"
        else:
            money = format_usd(outlet.usd) + (f", and {outlet.unpriced:,} unpriced" if outlet.unpriced else "")
        rows.append((_way(outlet.route, outlet.via), lines + failed, tokens, money))
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(3)]
    for row in rows:
        yield "  ".join(f"{cell:{width}}" for cell, width in zip(row, [*widths, 0], strict=True)).rstrip()


def cost_lines(progress: Progress, config: Config) -> Iterator[str]:
    """Say what a job has cost, of what the price is not known, and how much had a batch's price."""
    from orchestra.jobs import format_usd

    known = progress.done - progress.unpriced
    billed = [outlet for outlet in progress.outlets if outlet.via != "local"]
    if billed and known:
        yield f"cost: {format_usd(progress.usd)}"
    if progress.unpriced:
        what = "cost: unknown" if not known else f"cost unknown of {progress.unpriced:,} answered lines"
        yield f"{what}; {_add_prices(outlet.route for outlet in progress.outlets if outlet.unpriced)}"
    cheaper = progress.share(outlet for outlet in progress.outlets if _is_discounted(outlet, config))
    if cheaper:
        yield f"{cheaper:.0%} of the answered lines had the lower price of work that can wait"
    if progress.deferred and progress.deferred != cheaper:
        yield f"{progress.deferred:.0%} of the answered lines went in batches"
    if progress.left_batches:
        left = counted(progress.left_batches, "line", "lines")
        yield f"{left} left a batch unanswered, to be sent another way, or to fail"


def _is_discounted(outlet: OutletTally, config: Config) -> bool:
    """Whether lines that went so cost less for having time, by the settings, or else the provider's documents."""
    from orchestra.budget import batch_factor, price_for
    from orchestra.providers.batches import forms_of_kind

    name, _, model = (outlet.route or "").partition("/")
    if (provider := config.providers.get(name)) is None:
        return False
    price = price_for(provider.prices, model)
    forms = [form for form in forms_of_kind(provider.kind) if form.via == outlet.via]
    factors = [batch_factor(price, form.traits.price_factor, form.label) for form in forms]
    return bool(factors) and max(factors) < 1


def batch_lines(batches: Sequence[OpenBatch], now: float) -> Iterator[str]:
    """Say how batches are that are not over."""
    for batch in batches[:_MOST_BATCHES]:
        status = f" ({clean(batch.status)})" if batch.status and batch.state == "submitted" else ""
        parts = [
            f"{batch.riding:,} of {counted(batch.lines, 'line', 'lines')} on their way",
            f"{STAGES.get(batch.state, batch.state)}{status}",
            f"{format_duration(max(0.0, now - batch.opened))} old",
        ]
        if batch.next_look is not None:
            parts.append(f"next look in {format_duration(max(0.0, batch.next_look - now))}")
        yield f"{clean(batch.batch_id or 'batch')} by {batch.route}: {', '.join(parts)}"
    if len(batches) > _MOST_BATCHES:
        yield f"... and {len(batches) - _MOST_BATCHES} batches more"


def record_lines(records: Sequence[BatchRecord], now: float) -> Iterator[str]:
    """Say how the batches of a job are, and were."""
    for record in records:
        parts = [
            counted(record.lines, "line", "lines"),
            f"{STAGES.get(record.state, record.state)}{f' ({clean(record.status)})' if record.status else ''}",
        ]
        if record.ended_at is None:
            parts += [f"{record.riding:,} on their way", f"{format_duration(max(0.0, now - record.opened))} old"]
        else:
            parts.append(f"after {format_duration(max(0.0, record.ended_at - record.opened))}")
        if record.released:
            parts.append(f"{record.released:,} left it unanswered")
        if record.note:
            parts.append(clean(record.note))
        yield f"{clean(record.batch_id or 'never created')} by {record.route}: {', '.join(parts)}"


def expected_end(progress: Progress, now: float) -> str | None:
    """Say when a job is expected to end; None where nothing is known of that."""
    if not progress.pending:
        return None
    deadline = progress.deadline
    soon = deadline is not None and deadline - now < AN_HOUR
    latest = f"by {instant(deadline, exact=soon)} at the latest" if deadline is not None else None
    if progress.seconds_left is None:
        return None if latest is None else f"ends {latest}"
    expected = f"expected to end about {instant(now + progress.seconds_left, exact=soon)}"
    return expected if latest is None else f"{expected}, {latest}"


def retriable(failures: Iterable[tuple[str, int]]) -> int:
    """Return how many failed lines could be asked again, of codes and their counts."""
    return sum(count for code, count in failures if code != "invalid_line")


def held_by(pools: Iterable[Mapping[str, Any]], job: str) -> str | None:
    """Return which limit lets nothing of a job go for a minute or longer, by what the budget tells; or None."""
    for pool in pools:
        head = pool.get("head")
        if not head or head.get("job") != job or head.get("traffic") != "bulk" or not head.get("waits_for"):
            continue
        seconds = head.get("seconds")
        if seconds is not None and seconds >= _HELD and pool.get("paused") is None:
            limit = str(head["waits_for"]).replace("_", " ")
            return f"{pool['provider']} waits for {limit}, about {format_duration(seconds)}"
    return None


def within_limits(progress: Progress, pools: Sequence[Mapping[str, Any]], job: str) -> Progress:
    """Return progress that tells which limit holds the job, and promises no earlier end than the limits allow.

    ``pools`` are as the budget tells them. How fast it went says little where what was left of a limit is used up.
    """
    progress = stalled(progress, held_by(pools, job))
    # of a job that waits for several pools nobody knows how its lines are shared out among them
    heads = [(pool, pool.get("head") or {}) for pool in pools]
    mine = [pool for pool, head in heads if (head.get("traffic"), head.get("job")) == ("bulk", job)]
    if len(mine) != 1 or progress.waiting or (progress.seconds_left is None and progress.riding):
        return progress
    seconds = _allowed_in(progress, mine[0])
    return replace(progress, seconds_left=seconds) if seconds > (progress.seconds_left or 0.0) else progress


def _allowed_in(progress: Progress, pool: Mapping[str, Any]) -> float:
    """Return in how many seconds a pool's limits let the last line go that goes by itself."""
    lines = progress.pending - progress.riding - pool["in_use"]["bulk"]
    per_line = {"requests": 1.0, "send rate": 1.0}
    if progress.done:
        read, written = progress.input_tokens / progress.done, progress.output_tokens / progress.done
        per_line |= {"tokens": read + written, "input_tokens": read, "output_tokens": written}
        per_line["usd"] = progress.usd / progress.done
    waits = [0.0]
    for name, limit in pool["dimensions"].items():
        amount = per_line.get(name.removesuffix(" (learned)").removesuffix("_per_day"))
        if amount and limit["limit"] and limit["window"]:
            room = max(0.0, limit["available"] - limit["interactive_reserve"])
            waits.append((lines * amount - room) * limit["window"] / limit["limit"])
    return max(waits)


def stalled(progress: Progress, reason: str | None) -> Progress:
    """Return progress that says why it stands still, and promises no end from how fast it was before."""
    if reason is None or progress.waiting is not None or not progress.pending:
        return progress
    return replace(progress, waiting=reason, rate=None, seconds_left=None)


def forecast_lines(
    name: str, survey: Survey, forecast: Forecast, routes: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Say what a file would ask for, where that would go, and at what cost."""
    lines = counted(survey.lines, "line", "lines")
    yield f"{name}: {lines}, about {survey.input_tokens:,} tokens in, {_output(survey)}"
    for model, count in survey.models.most_common():
        yield f"  {model}: {count:,} lines, by {', then '.join(routes[model])}"
        for way in forecast.ways:
            if way.model == model:
                yield from (f"    {line}" for line in _way_lines(way))
    if survey.faulty:
        yield f"  lines that cannot be used and would fail: {survey.faulty:,}"
    local = [route for model in survey.models for route in routes[model] if route.startswith("local/")]
    if local:
        names = ", ".join(dict.fromkeys(local))
        yield f"  the lengths of prompts for {names} are checked when the run starts its engine"
    yield from _totals(survey, forecast)


def _output(survey: Survey) -> str:
    """Say how long the answers may become."""
    if not survey.unbounded:
        return f"at most {survey.output_tokens:,} out"
    bounded = f"at most {survey.output_tokens:,} out of those with a bound, " if survey.output_tokens else ""
    whose = counted(survey.unbounded, "line sets", "lines set")
    return f"{bounded}{whose} no max_tokens: up to what the model's context has room for"


def _way_lines(way: Way) -> Iterator[str]:
    where = {
        "batch": f"in {counted(way.batches, 'batch', 'batches')}",
        "background": "in the background",
        "local": "in this process",
        "sync": "at once",
    }
    yield f"{counted(way.lines, 'line', 'lines')} of {way.path} {where[way.via]}, by {way.route}: {way.why}"
    parts = ["price unknown" if way.cost is None else _range(way.cost)] if way.via != "local" else []
    if way.seconds is not None:
        parts.append(f"about {format_duration(way.seconds)}")
    if way.at_most is not None:
        parts.append(f"{format_duration(way.at_most)} at the longest")
    if parts:
        yield f"  {', '.join(parts)}"


def _totals(survey: Survey, forecast: Forecast) -> Iterator[str]:
    unpriced = forecast.unpriced
    if len(unpriced) < len(forecast.ways):
        cost = forecast.cost
        yield f"cost: {_range(cost)}" + (", and what has no price" if unpriced else "")
        if cost.high is not None and cost.high > cost.low:
            rides = any(way.via in ("batch", "background") for way in forecast.ways)
            yield (
                "  the least: empty answers; the most: answers as long as they may be"
                + (", at the full price" if rides else "")
            )
    if unpriced:
        lines = sum(way.lines for way in unpriced)
        yield (f"price unknown of {counted(lines, 'line', 'lines')}; {_add_prices(way.route for way in unpriced)}")
    if forecast.seconds is not None:
        yield f"duration: about {format_duration(forecast.seconds)}, if nobody else uses the account"
    elif forecast.ways:
        yield "duration: not known before it has begun"


def _range(cost: CostRange) -> str:
    from orchestra.jobs import format_usd

    if cost.high is None:
        return f"{format_usd(cost.low)} or more: not all lines bound their answers"
    low, high = format_usd(cost.low), format_usd(cost.high)
    return low if low == high else f"{low} to {high}"


def cancellation_lines(name: str, cancelled: Cancellation) -> Iterator[str]:
    """Say what became of a job that was cancelled."""
    for batch in cancelled.batches:
        what = f"{clean(batch.batch_id or 'a batch')} by {batch.route}"
        lines = counted(batch.riding, "line", "lines")
        if batch.outcome == "left":
            yield f"{what} ({lines}): could not be cancelled, and may go on there: {clean(batch.note or '')}"
        elif batch.outcome == "unsent":
            yield f"{what} ({lines}): had not been created"
        else:
            yield f"{what} ({lines}): cancelled" + (f"; {clean(batch.note)}" if batch.note else "")
    collected = f"; {cancelled.collected:,} more were answered before" if cancelled.collected else ""
    yield f"job {name}: cancelled, with {counted(cancelled.lines, 'line', 'lines')} without an answer{collected}"


def deletion_lines(name: str, deleted: Deletion) -> Iterator[str]:
    """Say what was forgotten of a job, and what was not."""
    for told in deleted.left:
        yield f"its files of {clean(told, longest=400)}; they stay there"
    files = f" and {counted(deleted.files, 'file', 'files')} at providers" if deleted.files else ""
    yield f"job {name}: deleted, with {counted(deleted.lines, 'line', 'lines')}{files}"
    if not deleted.compacted:
        yield "the ledger's file keeps its size (it is in use, or the disk is full); jobs to come use the room"


def instant(seconds: float, *, exact: bool = False) -> str:
    """Return an instant as the clock on the wall shows it; ``exact``: with its seconds."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S" if exact else "%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "in more years than a calendar has"


def counted(count: int, one: str, several: str) -> str:
    """Return ``count`` with the word for so many."""
    return f"{count:,} {one if count == 1 else several}"


def clean(text: str | None, *, longest: int = 200) -> str:
    """Return what a provider said as a terminal may see it: what is not printable could steer it."""
    text = "".join(sign if sign.isprintable() else "?" for sign in text or "")
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _way(route: str | None, via: str) -> str:
    return f"{route or 'no route'}{' by batch' if via == 'batch' else ''}"


def _add_prices(routes: Iterable[str | None]) -> str:
    """Return what to do about routes without a price."""
    found = dict.fromkeys(route for route in routes if route is not None)
    settings = dict.fromkeys(f"[[providers.{route.partition('/')[0]}.prices]]" for route in found)
    return f"to know it, add {' and '.join(settings)} for {', '.join(found)}"
