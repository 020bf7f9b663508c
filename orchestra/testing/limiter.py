"""A provider's own rate limit: what our budget is there never to run into."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from typing import Literal

__all__ = ["ChargeRule", "Gauge", "HeaderStyle", "HintStyle", "Limiter", "Limits", "Tenant"]

ChargeRule = Literal["bound", "usage", "prompt", "larger"]
HeaderStyle = Literal["limits", "retry-after", "none"]
HintStyle = Literal["seconds", "milliseconds", "date", "reset", "iso", "none"]

_METRICS = ("requests", "tokens", "input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the provider allows: continuously refilled buckets that hold ``burst_seconds`` of refill, and a number
    of requests at once.

    ``charge`` is how tokens are counted:

    - ``"bound"``: the prompt and the most that may come (``max_tokens`` and the like), on arrival, for good;
    - ``"usage"``: the same, corrected by what it really was when the answer is over;
    - ``"prompt"``: the prompt on arrival, the output when the answer is over (Anthropic's rule);
    - ``"larger"``: the larger of the prompt and the most that may come (OpenAI's rule).

    ``headers`` is what answers tell: ``"limits"``, the state of every limit in the wire's own headers, and in
    refusals when to come back; ``"retry-after"``, only that; ``"none"``, nothing. ``hint`` is how a refusal words
    when to come back: Retry-After in ``"seconds"``, ``"milliseconds"`` or as a ``"date"``; the headers that say
    when a limit is full again, as a duration (``"reset"``) or a time (``"iso"``); or ``"none"`` of these.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrency: int | None = None
    burst_seconds: float = 60.0
    hint: HintStyle = "seconds"
    input_tokens_per_minute: float | None = None
    output_tokens_per_minute: float | None = None
    charge: ChargeRule = "bound"
    headers: HeaderStyle = "limits"


@dataclass(frozen=True, slots=True)
class Tenant:
    """Somebody else on the same account, who takes ``share`` of every refill: for ``on`` seconds, then nothing for
    ``off`` seconds, and so on. Takes precedence, evenly, as a crowd of small calls would."""

    share: float
    on: float = math.inf
    off: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"a tenant's share must be a number from 0 to below 1, not {self.share!r}")
        if not (self.on > 0 and self.off >= 0):
            raise ValueError("a tenant is on for more than no time, and off for no less")

    def busy(self, since: float, until: float) -> float:
        """Return how many of the seconds between two instants, counted from the start, it is on."""
        return self._busy_until(until) - self._busy_until(since)

    def _busy_until(self, instant: float) -> float:
        if self.on == math.inf:
            return instant
        cycles, rest = divmod(instant, self.on + self.off)
        return cycles * self.on + min(rest, self.on)


@dataclass(frozen=True, slots=True)
class Gauge:
    """One limit as headers tell it: a minute's worth, what is left, and in how many seconds it is full again."""

    metric: str
    limit: float
    remaining: float
    full_in: float


@dataclass(slots=True)
class _Bucket:
    per_minute: float
    capacity: float
    level: float

    def wait(self, amount: float) -> float:
        return max(0.0, (min(amount, self.capacity) - self.level) * 60 / self.per_minute)


@dataclass(slots=True)
class Limiter:
    """Enforces `Limits`, which may change while it runs."""

    limits: Limits
    tenant: Tenant | None = None
    clock: Callable[[], float] = time.monotonic
    _buckets: dict[str, _Bucket] = field(init=False, default_factory=dict)
    _started: float = field(init=False)
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self._at = self.clock()
        self.change(self.limits)

    def start(self, now: float) -> None:
        """Start the tenant's time at ``now``, and refilling: nothing was used before."""
        self._started = self._at = now

    def change(self, limits: Limits) -> None:
        """Enforce other limits from now on. What is left stays left, as far as it fits; a new one starts full."""
        self._refill()
        kept, self._buckets = self._buckets, {}
        self.limits = limits
        for metric in _METRICS:
            per_minute: float | None = getattr(limits, f"{metric}_per_minute")
            if per_minute is not None:
                capacity = per_minute * limits.burst_seconds / 60
                level = min(capacity, kept[metric].level) if metric in kept else capacity
                self._buckets[metric] = _Bucket(per_minute, capacity, level)

    def admit(self, prompt: float, bound: float, in_flight: int) -> float | None:
        """Take one request with a prompt of so many tokens and so many more at most.

        Returns None, or the seconds until it could be taken.
        """
        self._refill()
        amounts = self.on_arrival(prompt, bound)
        wait = max((bucket.wait(amounts[metric]) for metric, bucket in self._buckets.items()), default=0.0)
        if self.limits.max_concurrency is not None and in_flight > self.limits.max_concurrency:
            wait = max(wait, 0.05)
        if wait > 1e-9:
            return wait
        self._take(amounts)
        return None

    def settle(self, prompt: float, bound: float, output: float) -> dict[str, float]:
        """Correct what `admit` took, where the rule says so, now that the output is known. Returns what counts."""
        taken = self.on_arrival(prompt, bound)
        if self.limits.charge not in ("usage", "prompt"):
            return taken
        self._refill()
        used = {"requests": 1.0, "tokens": prompt + output, "input_tokens": prompt, "output_tokens": output}
        self._take({metric: used[metric] - taken[metric] for metric in _METRICS})
        return used

    def gauges(self) -> list[Gauge]:
        """Return the state of every limit."""
        self._refill()
        return [
            Gauge(metric, bucket.per_minute, max(0.0, bucket.level), bucket.wait(bucket.capacity))
            for metric, bucket in self._buckets.items()
        ]

    def hint(self, wait: float, header: str) -> Mapping[str, str]:
        """Return the headers that tell a refused caller to wait that many seconds.

        ``header`` is the pattern of the wire's own limit headers, of ``{field}`` and ``{metric}``.
        """
        if self.limits.headers == "none":
            return {}
        match self.limits.hint:
            case "seconds":
                return {"retry-after": f"{wait:.3f}"}
            case "milliseconds":
                return {"retry-after-ms": f"{wait * 1000:.0f}"}
            case "date":
                return {"retry-after": formatdate(time.time() + wait + 1, usegmt=True)}  # dates have whole seconds
            case "reset":
                return self._exhausted(f"{wait:.3f}s", header)
            case "iso":
                at = datetime.now(UTC) + timedelta(seconds=wait)
                return self._exhausted(at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), header)
            case "none":
                return {}

    def _exhausted(self, reset: str, header: str) -> Mapping[str, str]:
        told = {"remaining": "0", "reset": reset}
        metrics = [name.replace("_", "-") for name in self._buckets]
        return {header.format(field=name, metric=one): told[name] for name in told for one in metrics}

    def on_arrival(self, prompt: float, bound: float) -> dict[str, float]:
        """Return what `admit` takes of each limit."""
        later = 0.0 if self.limits.charge == "prompt" else bound
        tokens = max(prompt, bound) if self.limits.charge == "larger" else prompt + later
        return {"requests": 1.0, "tokens": tokens, "input_tokens": prompt, "output_tokens": later}

    def _take(self, amounts: Mapping[str, float]) -> None:
        for metric, bucket in self._buckets.items():
            bucket.level = min(bucket.capacity, bucket.level - amounts[metric])

    def _refill(self) -> None:
        now = self.clock()
        seconds = now - self._at
        if self.tenant is not None:
            seconds -= self.tenant.share * self.tenant.busy(self._at - self._started, now - self._started)
        for bucket in self._buckets.values():
            bucket.level = min(bucket.capacity, bucket.level + seconds * bucket.per_minute / 60)
        self._at = now
