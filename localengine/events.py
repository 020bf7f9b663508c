"""What the engine tells while it serves, as typed events: the ground for metrics.

::

    stop = engine.events.subscribe(lambda event: print(event))

An event holds names, numbers and reasons. It never holds a prompt or an answer. Of each request it is told in this
order; a displaced one goes on where it was::

    RequestQueued -> RequestStarted -> FirstToken -> RequestFinished
                  \\                \\             \\
                   +----------------+-------------+-> RequestCancelled, or RequestFailed

A request that is refused, at once (`PromptError`, `EngineBusy`) or since the engine has ended, is never queued.
Each of ``n`` completions of a prompt is a request of its own here, with an id of its own. Instants (``at``) are of
``time.monotonic``, durations are in seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from orchestra.localengine.errors import EngineError
from orchestra.localengine.request import FinishReason, Timing, Usage
from orchestra.localengine.step_record import StepRecord
from orchestra.policies.traffic import TrafficClass

__all__ = [
    "EngineEvent",
    "EngineFailed",
    "EngineShrank",
    "EngineStarted",
    "EngineStopped",
    "EventBus",
    "FirstToken",
    "RequestCancelled",
    "RequestDisplaced",
    "RequestEvent",
    "RequestFailed",
    "RequestFinished",
    "RequestQueued",
    "RequestStarted",
    "StepRan",
    "Subscriber",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStarted:
    """The model is loaded, with ``blocks`` blocks of ``block_size`` tokens in its KV cache."""

    at: float
    model: str
    blocks: int
    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStopped:
    """The engine was closed. Requests that it did not finish have failed before this."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFailed:
    """The model could not be loaded, or the step loop failed; then its requests have failed before this."""

    at: float
    error: EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShrank:
    """The device ran out of memory, for ``reason``: ``given_up`` blocks of the KV cache are gone, ``blocks`` left.

    The step that had failed is tried again. Requests that cannot fit any more have failed before this.
    """

    at: float
    given_up: int
    blocks: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRan:
    """A step has ended."""

    at: float
    step: StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEvent:
    """Something that happened to a request. ``completion`` is its place among the ``n`` of its prompt."""

    at: float
    request_id: int
    traffic: TrafficClass
    completion: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestQueued(RequestEvent):
    """It waits for its first step. ``max_tokens`` is the most that its output may have."""

    prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStarted(RequestEvent):
    """Its first step begins, ``queue`` seconds after it was submitted.

    ``cached_tokens`` of its prompt were in the prefix cache.
    """

    queue: float
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken(RequestEvent):
    """Its first output token is there, ``ttft`` seconds after it was submitted."""

    ttft: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDisplaced(RequestEvent):
    """It had to let go of its place, for the ``displacements``-th time, and waits again."""

    displacements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFinished(RequestEvent):
    """Its output is complete."""

    reason: FinishReason
    usage: Usage
    timing: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCancelled(RequestEvent):
    """Nobody wants it any more; ``output_tokens`` were drawn until then."""

    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed(RequestEvent):
    """It ended with an error, which its reader has got."""

    error: EngineError


EngineEvent = EngineStarted | EngineStopped | EngineFailed | EngineShrank | StepRan | RequestEvent
Subscriber = Callable[[EngineEvent], object]


class EventBus:
    """Hands every event to all subscribers.

    A subscriber runs in the engine's own thread, between two steps, with no lock held: it must be quick, for no
    token is computed meanwhile. What it raises is logged and goes no further. Thread-safe. Where nobody listens no
    event is made at all.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: tuple[Subscriber, ...] = ()

    @property
    def listening(self) -> bool:
        """Whether anybody wants to know."""
        return bool(self._subscribers)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call ``subscriber`` with every event from now on. Returns the function that ends it."""
        with self._lock:
            self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = tuple(one for one in self._subscribers if one is not subscriber)

        return unsubscribe

    def emit(self, event: EngineEvent, *more: Subscriber) -> None:
        """Tell all subscribers of ``event``, and ``more``."""
        for subscriber in (*self._subscribers, *more):
            try:
                subscriber(event)
            except Exception:
                _log.exception("a subscriber failed on %s", type(event).__name__)
