"""One stream of typed events about everything decided: the ground for logs, metrics, and status.

An event holds names, numbers and reasons. It never holds a key, a prompt, or an answer.

Of each call (``call``), each attempt is told in this order::

    queued -> admitted -> sent -> first_byte -> settled
         \\         \\        \\           \\
          refused   +--------+-----------+-> interrupted, or the next attempt's retried or fell_back, or failed

An engine in this process has its own queue: attempts at it begin with ``sent``, to the engine, and ``queued`` and
``admitted`` follow, when it has taken the call in and when its first step begins.

A durable job tells ``job_began`` when it begins to run here, or goes on, and ``job_ended`` when it is over or
stops. Its lines that go by themselves are calls like others. Those that ride in batches are not told one by one:
``batch_ended`` tells of each batch, as a call of its own, when it is over.

A call that may ride in a batch begins with ``parked``. Then its answer from a batch is ``settled``; where it goes
by itself after all, ``queued`` and the others follow.

``paused`` comes beside them, and ``hedged`` begins a second attempt while the first is under way; the one of the
two that is not used ends with ``interrupted``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from orchestra.policies.traffic import TrafficClass

__all__ = ["Event", "EventBus", "EventKind"]

EventKind = Literal[
    "parked",  # the call has time: it waits for a batch, or for word that none is worth it
    "queued",  # an attempt asks the budget to be let go, or waits in the engine
    "admitted",  # the budget let it go, or the engine begins with it
    "sent",  # its request is on the wire, or with the engine
    "first_byte",  # a streamed answer shows its first content
    "retried",  # an attempt failed and the call tries the same route again
    "fell_back",  # an attempt failed and the call takes another route
    "hedged",  # the attempt is late, and another one starts beside it
    "refused",  # the budget did not let the call go
    "paused",  # a provider says that an account is spent
    "settled",  # an answer is complete and its usage accounted for
    "interrupted",  # an attempt was given up, or its stream broke after content had been shown
    "failed",  # the call has no answer, or an error for one
    "passed_through",  # nobody meters this call: its host is not configured
    "job_began",  # a durable job begins to run in this process, or goes on
    "job_ended",  # all its lines have an end, or it stops before
    "batch_ended",  # a batch of a durable job is over: its results are in, or nobody waits for them any more
]

_log = logging.getLogger("orchestra.events")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a call, at the instant ``at`` of the monotonic clock.

    The first five fields are always there, others where they mean something. Durations are in seconds.

    - ``operation``: what the call asks for, in OpenTelemetry's words (``chat``, ``text_completion``,
      ``embeddings``, ``generate_content``); None where the endpoint is none that we know.
    - ``route``: of the attempt, ``provider/model`` or ``local/name``; ``model``: what the caller asked for.
    - ``attempt``: the attempt's number in its call, from 1. In ``failed``: how many there were.
    - ``reason``: why, in a few words: of what failed before, of a refusal, of a pause, of an interruption
      (``broken``, ``dropped``, ``cancelled``, ``outrun``: the call goes on with its other attempt).
    - ``from_route`` (``retried``, ``fell_back``, ``hedged``): the route of the attempt before.
    - ``status``: the HTTP status of the answer; in ``retried``, ``fell_back`` and ``failed`` of the one before, in
      ``interrupted`` of an attempt that failed beside the other one.
    - ``waited`` (``admitted``, ``refused``): in the budget's queue, or the engine's; (``retried``, ``fell_back``,
      and ``interrupted`` between two attempts): since the attempt that failed; (``batch_ended``): from its first
      line to the provider's having it, None where that never had.
    - ``estimated_input_tokens``, ``estimated_output_tokens``, ``estimated_usd`` (``queued``, ``admitted``,
      ``settled``, ``interrupted``): what was set aside, where that counts.
    - ``time_left`` (``queued``): in how many seconds the call must have been let go; (``job_began``): up to the
      job's deadline. None where nothing bounds it.
    - ``input_tokens``, ``output_tokens``, ``cached_tokens``, ``usd``, ``certainty`` (``settled``): what was used,
      and whether that is known. ``charged_tokens``: what the account's limit of tokens counts for it.
    - ``lines`` (``job_ended``, ``batch_ended``): how many there are; ``answered`` (``batch_ended``): how many of
      them the batch brought an end. In ``job_ended``, ``input_tokens`` and ``output_tokens`` are those of all that
      were answered, in batches as well.
    - ``ttft`` (``first_byte``, ``settled``): from ``sent`` to the first content of a streamed answer.
    - ``duration``: from ``sent`` to the end of the attempt (``settled``, ``interrupted``); from the call's
      beginning (``failed``, and whatever ends a wait for a batch or a route); for how long (``paused``); after how
      long the first was late (``hedged``); from the provider's having a batch, or else from its first line, to its
      end (``batch_ended``).
    """

    kind: EventKind
    call: str
    traffic: TrafficClass
    at: float
    route: str = ""
    model: str | None = None
    operation: str | None = None
    job: str | None = None
    attempt: int | None = None
    from_route: str | None = None
    reason: str | None = None
    status: int | None = None
    waited: float | None = None
    time_left: float | None = None
    estimated_input_tokens: float | None = None
    estimated_output_tokens: float | None = None
    estimated_usd: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    certainty: Literal["known", "estimated", "unknown"] | None = None
    charged_tokens: float | None = None
    lines: int | None = None
    answered: int | None = None
    usd: float | None = None
    ttft: float | None = None
    duration: float | None = None

    def told(self) -> dict[str, Any]:
        """Return what is told, by field, without what is not, and with plain values: for logs and JSON."""
        told = {name: value for name in _FIELDS if (value := getattr(self, name)) not in (None, "")}
        return {**told, "traffic": self.traffic.value}

    def as_extra(self) -> dict[str, Any]:
        """Return what is told as ``extra=`` of a log record, with the kind as ``event``."""
        told = self.told()
        return {"event": told.pop("kind"), **told}


_FIELDS = tuple(one.name for one in fields(Event))


class EventBus:
    """Hands every event to all subscribers, and to the logger ``orchestra.events`` at level DEBUG.

    A log record has the event's fields as attributes (``extra=``), its kind as ``event``, for formatters that
    write JSON.

    A subscriber runs in whatever thread the event arose in, never inside the garbage collector, so it may take
    locks; it must be quick, and must not block. What it raises is logged and goes no further. Thread-safe. Where
    nobody listens no event is made at all.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: tuple[Callable[[Event], object], ...] = ()

    @property
    def listening(self) -> bool:
        """Whether anybody wants to know: a subscriber, or the log."""
        return bool(self._subscribers) or _log.isEnabledFor(logging.DEBUG)

    def subscribe(self, subscriber: Callable[[Event], object]) -> Callable[[], None]:
        """Call ``subscriber`` with every event from now on. Returns the function that ends it."""
        with self._lock:
            self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = tuple(one for one in self._subscribers if one is not subscriber)

        return unsubscribe

    def emit(self, event: Event) -> None:
        """Tell everybody of ``event``."""
        if _log.isEnabledFor(logging.DEBUG):
            told = event.as_extra()
            line = " ".join(f"{name}={value}" for name, value in told.items() if name not in ("event", "at"))
            _log.debug("%s %s", event.kind, line, extra=told)
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                _log.exception("a subscriber failed on %s", event.kind)
