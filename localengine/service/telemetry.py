"""What the engine knows of its own work: counts, the latest figures, and the events that it tells."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from orchestra.localengine.errors import EngineError
from orchestra.localengine.events import (
    EngineFailed,
    EngineShrank,
    EngineStarted,
    EngineStopped,
    EventBus,
    FirstToken,
    RequestCancelled,
    RequestDisplaced,
    RequestEvent,
    RequestFailed,
    RequestFinished,
    RequestQueued,
    RequestStarted,
    StepRan,
)
from orchestra.localengine.service.generation import Generation
from orchestra.localengine.service.loading import LoadedModel
from orchestra.localengine.step_record import StepRecord
from orchestra.policies.rank import nearest_rank
from orchestra.policies.traffic import TrafficClass

__all__ = ["Telemetry"]

_HISTORY = 1 << 14  # steps that are remembered
_RECENT_STEPS = 256
_RECENT_REQUESTS = 512  # of each class
_RECENT_TOKENS = 4096  # of each class
_COUNTERS = (
    "steps",
    "abandoned",
    "out_of_memory",
    "refused",
    "finished",
    "cancelled",
    "failed",
    "prefill_tokens",
    "output_tokens",
    "displacements",
)


class Telemetry:
    """The worker's thread reports to it, and anybody reads.

    Events go to ``bus``, and to each request's own listener, with no lock held.
    """

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(_COUNTERS, 0))
        self._history: deque[StepRecord] = deque(maxlen=_HISTORY)
        self._ttft = {c: deque[float](maxlen=_RECENT_REQUESTS) for c in TrafficClass}
        self._gaps = {c: deque[float](maxlen=_RECENT_TOKENS) for c in TrafficClass}
        self._prompt_tokens = dict.fromkeys(TrafficClass, 0)
        self._cached_tokens = dict.fromkeys(TrafficClass, 0)

    # From any thread

    def history(self) -> list[StepRecord]:
        """The latest steps, oldest first."""
        with self._lock:
            return list(self._history)

    def stats(self) -> dict[str, Any]:
        """Counts since the start, and the latest figures, as plain data. What is not known yet is None.

        ``ttft``, ``per_token``: over the latest requests and tokens of each class, in seconds; the latter is the
        time from one token of a request to its next. ``cache_hit_rate``: of the prompt tokens of all requests that
        began. ``occupancy`` (of the slots) and ``predicted_over_actual`` (time): over the latest steps.
        """
        with self._lock:
            counts = dict(self._counts)
            steps = list(islice(reversed(self._history), _RECENT_STEPS))
            ttft = {traffic: list(values) for traffic, values in self._ttft.items()}
            gaps = {traffic: list(values) for traffic, values in self._gaps.items()}
            prompt, cached = dict(self._prompt_tokens), dict(self._cached_tokens)
        return {
            **counts,
            "last_step_seconds": steps[0].seconds if steps else None,
            "occupancy": _ratio(sum(step.occupancy for step in steps), len(steps)),
            "predicted_over_actual": _ratio(
                sum(step.predicted for step in steps), sum(step.seconds for step in steps)
            ),
            "ttft": {str(traffic): _spread(values) for traffic, values in ttft.items()},
            "per_token": {str(traffic): _spread(values) for traffic, values in gaps.items()},
            "prompt_tokens": {str(traffic): count for traffic, count in prompt.items()},
            "cached_tokens": {str(traffic): count for traffic, count in cached.items()},
            "cache_hit_rate": {str(traffic): _ratio(cached[traffic], prompt[traffic]) for traffic in prompt},
        }

    # From the worker's thread

    def engine_started(self, model: LoadedModel) -> None:
        if self._bus.listening:
            runner = model.runner
            self._bus.emit(
                EngineStarted(
                    at=time.monotonic(),
                    model=model.name,
                    blocks=runner.num_blocks,
                    block_size=runner.block_size,
                )
            )

    def engine_ended(self, error: EngineError | None = None) -> None:
        """It was closed, or ended by ``error``."""
        if self._bus.listening:
            now = time.monotonic()
            self._bus.emit(EngineStopped(at=now) if error is None else EngineFailed(at=now, error=error))

    def shrank(self, given_up: int, blocks: int, reason: str) -> None:
        """``given_up`` blocks were given up, ``blocks`` are left."""
        self.count("out_of_memory")
        if self._bus.listening:
            self._bus.emit(EngineShrank(at=time.monotonic(), given_up=given_up, blocks=blocks, reason=reason))

    def queued(self, generation: Generation) -> None:
        seq = generation.seq
        self._tell(RequestQueued, generation, prompt_tokens=seq.num_prompt, max_tokens=seq.max_tokens)

    def started(self, generation: Generation, now: float) -> None:
        """Its first step begins."""
        seq = generation.seq
        cached = seq.num_cached or 0
        with self._lock:
            self._prompt_tokens[seq.traffic] += seq.num_prompt
            self._cached_tokens[seq.traffic] += cached
        self._tell(RequestStarted, generation, queue=now - generation.submitted, cached_tokens=cached)

    def drew(self, generation: Generation) -> None:
        """It has one more output token."""
        traffic, gap = generation.seq.traffic, generation.latest_gap
        with self._lock:
            self._counts["output_tokens"] += 1
            if gap is not None:
                self._gaps[traffic].append(gap)
            else:
                self._ttft[traffic].append(generation.ttft)
        if gap is None:
            self._tell(FirstToken, generation, ttft=generation.ttft)

    def displaced(self, generation: Generation) -> None:
        self.count("displacements")
        self._tell(RequestDisplaced, generation, displacements=generation.seq.displacements)

    def finished(self, generation: Generation) -> None:
        self.count("finished")
        last = generation.last
        assert last is not None, "what has finished has a last delta"
        self._tell(RequestFinished, generation, reason=last.finish_reason, usage=last.usage, timing=last.timing)

    def cancelled(self, generation: Generation) -> None:
        self.count("cancelled")
        self._tell(RequestCancelled, generation, output_tokens=generation.seq.num_output)

    def failed(self, generation: Generation, error: EngineError) -> None:
        self.count("failed")
        self._tell(RequestFailed, generation, error=error)

    def stepped(self, step: StepRecord) -> None:
        with self._lock:
            self._history.append(step)
            self._counts["steps"] += 1
            self._counts["prefill_tokens"] += step.prefill_tokens
        if self._bus.listening:
            self._bus.emit(StepRan(at=time.monotonic(), step=step))

    def count(self, name: str) -> None:
        """One more of what has no event of its own. From any thread."""
        with self._lock:
            self._counts[name] += 1

    def _tell(self, kind: type[RequestEvent], generation: Generation, **fields: Any) -> None:
        own = () if generation.on_event is None else (generation.on_event,)
        if own or self._bus.listening:
            seq = generation.seq
            event = kind(
                at=time.monotonic(),
                request_id=seq.request_id,
                traffic=seq.traffic,
                completion=generation.index,
                **fields,
            )
            self._bus.emit(event, *own)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """The median and the 95th percentile (nearest rank), and of how many."""
    ordered = sorted(values)
    p50, p95 = (nearest_rank(ordered, share) if ordered else None for share in (0.5, 0.95))
    return {"p50": p50, "p95": p95, "count": len(ordered)}
