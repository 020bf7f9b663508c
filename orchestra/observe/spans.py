"""The span of a call, from its events: what it waited for, which attempts it made, and how they ended.

A batch of a durable job has one likewise. Its lines have none of their own, since there may be a million.

Pure. Names and attributes follow OpenTelemetry's conventions for GenAI client spans (docs/gen-ai/gen-ai-spans.md).
Instants are of the monotonic clock, in seconds, as in `Event`. No prompt, answer or key is in any of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestra.observe.events import Event
from orchestra.observe.measuring import LOCAL, OTHER, error_type, outlet_of, provider_of

__all__ = ["Span", "SpanEvent", "span_of"]

Value = str | int | float | bool
_POINTS = {
    "parked": "orchestra.parked",
    "first_byte": "orchestra.first_token",
    "retried": "orchestra.retried",
    "fell_back": "orchestra.fell_back",
    "hedged": "orchestra.hedged",
    "refused": "orchestra.refused",
    "paused": "orchestra.paused",
}
"""What is a point in the call's time, and how it is called there."""
_AFTER_ALL = ("retried", "fell_back", "failed")
"""What is told when no attempt is under way: why the one before had failed."""


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """A point in a span's time."""

    name: str
    at: float
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time. ``error`` is what kind of error it ended with; empty where it ended well.

    ``kind`` is ``client`` for what another machine answers, and ``internal`` for what happens in this process.
    """

    name: str
    kind: Literal["client", "internal"]
    start: float
    end: float
    attributes: Mapping[str, Value]
    error: str = ""
    events: tuple[SpanEvent, ...] = ()
    children: tuple[Span, ...] = ()


@dataclass(slots=True)
class _Attempt:
    """What is known of an attempt so far. Local ones are sent first, and queue then."""

    route: str
    queued: float | None = None
    let_go: float | None = None
    sent: float | None = None
    ended: float | None = None
    error: str = ""


def span_of(events: Sequence[Event], kinds: Mapping[str, str]) -> Span:
    """Return the span of a call that is over; ``kinds`` are the kinds of its providers by their names.

    Its children are the stretches of its attempts: ``queue`` in the budget's or the engine's queue, and
    ``request ROUTE`` with who answers; and ``batch``, while it waited for one. The gap before a further attempt is
    the wait that the retry policy chose.
    """
    last = events[-1]
    if last.kind == "batch_ended":
        return _batch(last, kinds)
    start, end = events[0].at, last.at
    if len(events) == 1 and last.duration is not None:
        start = end - last.duration
    account, _, model = last.route.partition("/")
    failed = last.kind != "settled" or (last.status or 0) >= 400
    operation = last.operation or OTHER
    asked = model or last.model or ""
    attributes: dict[str, Value | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": provider_of(account, kinds),
        "gen_ai.request.model": asked,
        "gen_ai.request.stream": True if any(event.ttft is not None for event in events) else None,
        "gen_ai.usage.input_tokens": last.input_tokens,
        "gen_ai.usage.output_tokens": last.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": last.cached_tokens or None,
        "gen_ai.response.time_to_first_chunk": last.ttft,
        "http.response.status_code": last.status,
        "orchestra.call": last.call,
        "orchestra.job": last.job,
        "orchestra.model": last.model,
        "orchestra.account": account,
        "orchestra.traffic": str(last.traffic),
        "orchestra.outlet": outlet_of(events),
        "orchestra.attempts": max((event.attempt or 0 for event in events), default=0),
        "orchestra.usd": last.usd,
        "orchestra.certainty": last.certainty,
    }
    return Span(
        name=f"{operation} {asked}".strip(),
        kind="internal" if account == LOCAL else "client",
        start=start,
        end=max(start, end),
        attributes=_told(attributes),
        error=error_type(last) if failed else "",
        events=tuple(_point(event) for event in events if event.kind in _POINTS),
        children=tuple(_children(events)),
    )


def _batch(event: Event, kinds: Mapping[str, str]) -> Span:
    """Return the span of a batch: ``queue`` until its provider had it, then ``request ROUTE``."""
    account, _, model = event.route.partition("/")
    operation = event.operation or OTHER
    attributes: dict[str, Value | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": provider_of(account, kinds),
        "gen_ai.request.model": model,
        "orchestra.call": event.call,
        "orchestra.job": event.job,
        "orchestra.account": account,
        "orchestra.traffic": str(event.traffic),
        "orchestra.outlet": "batch",
        "orchestra.lines": event.lines,
        "orchestra.answered": event.answered,
    }
    error = event.reason or ""
    handed_in = event.at - (event.duration or 0.0)
    start = handed_in - (event.waited or 0.0)
    route: Mapping[str, Value] = {"orchestra.route": event.route}
    children: tuple[Span, ...]
    if event.waited is None:  # its provider never had it
        children = (Span("queue", "internal", start, event.at, route, error),)
    else:
        children = (
            Span("queue", "internal", start, handed_in, route),
            Span(f"request {event.route}", "client", handed_in, event.at, route, error),
        )
    name = f"batch {operation} {model}"
    return Span(name, "client", start, event.at, _told(attributes), error, children=children)


def _point(event: Event) -> SpanEvent:
    attributes: dict[str, Value | None] = {
        "orchestra.route": event.route,
        "orchestra.attempt": event.attempt,
        "orchestra.from_route": event.from_route,
        "orchestra.reason": event.reason,
        "orchestra.waited": event.waited,
        "orchestra.duration": event.duration,
        "http.response.status_code": event.status,
    }
    return SpanEvent(_POINTS[event.kind], event.at, _told(attributes))


def _children(events: Sequence[Event]) -> list[Span]:
    attempts: dict[int, _Attempt] = {}
    spans: list[Span] = []
    for event in events:
        number = event.attempt
        if event.kind in _AFTER_ALL or (event.kind == "interrupted" and number is None):
            # Every attempt before is over, for as long as this one waited; of one that failed nothing else tells.
            for attempt in attempts.values():
                if attempt.ended is None:
                    attempt.ended = event.at - (event.waited or 0.0)
                    attempt.error = error_type(event) if event.kind in _AFTER_ALL else OTHER
        if number is None or event.kind in (*_AFTER_ALL, "paused"):
            continue
        attempt = attempts.setdefault(number, _Attempt(event.route))
        match event.kind:
            case "queued":
                attempt.queued = event.at
            case "admitted" | "refused":
                attempt.let_go = event.at
                attempt.error = error_type(event) if event.kind == "refused" else attempt.error
                attempt.ended = event.at if event.kind == "refused" else attempt.ended
            case "sent" | "hedged":
                attempt.sent = attempt.sent if attempt.sent is not None else event.at
            case "settled" | "interrupted":
                attempt.ended = event.at
                outrun = event.reason == "outrun" and event.status is None
                attempt.error = "" if outrun else error_type(event)
    end = events[-1].at
    if events[0].kind == "parked":
        left = next((event.at for event in events if event.attempt is not None), end)
        spans.append(Span("batch", "internal", events[0].at, left, {}))
    for number, attempt in sorted(attempts.items()):
        spans += _stretches(number, attempt, end)
    return spans


def _stretches(number: int, attempt: _Attempt, end: float) -> list[Span]:
    ended = attempt.ended if attempt.ended is not None else end
    attributes: dict[str, Value] = {"orchestra.route": attempt.route, "orchestra.attempt": number}
    spans: list[Span] = []
    if attempt.queued is not None:
        let_go = attempt.let_go if attempt.let_go is not None else ended
        error = attempt.error if attempt.sent is None else ""
        spans.append(Span("queue", "internal", attempt.queued, max(attempt.queued, let_go), attributes, error))
    if attempt.sent is not None:
        kind: Literal["client", "internal"] = "internal" if attempt.route.startswith(f"{LOCAL}/") else "client"
        name = f"request {attempt.route}"
        spans.append(Span(name, kind, attempt.sent, max(attempt.sent, ended), attributes, attempt.error))
    return spans


def _told(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None and value != ""}
