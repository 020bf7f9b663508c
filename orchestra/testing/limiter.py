"""A provider's own rate limit: what our budget is there never to run into."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Literal

__all__ = ["HintStyle", "Limiter", "Limits"]

HintStyle = Literal["seconds", "milliseconds", "date", "reset", "none"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the provider allows: continuously refilled buckets that hold ``burst_seconds`` of refill, and a number
    of requests at once. ``hint`` is how a refusal words when to come back."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrency: int | None = None
    burst_seconds: float = 60.0
    hint: HintStyle = "seconds"


@dataclass(slots=True)
class _Bucket:
    per_minute: float
    capacity: float
    level: float
    at: float

    def refill(self, now: float) -> None:
        self.level = min(self.capacity, self.level + (now - self.at) * self.per_minute / 60)
        self.at = now

    def wait(self, amount: float) -> float:
        return max(0.0, (min(amount, self.capacity) - self.level) * 60 / self.per_minute)


@dataclass(slots=True)
class Limiter:
    """Enforces `Limits`. Every answer tells the state in OpenAI's ``x-ratelimit-*`` headers."""

    limits: Limits
    _buckets: dict[str, _Bucket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rates = {"requests": self.limits.requests_per_minute, "tokens": self.limits.tokens_per_minute}
        now = time.monotonic()
        for name, rate in rates.items():
            if rate is not None:
                capacity = rate * self.limits.burst_seconds / 60
                self._buckets[name] = _Bucket(rate, capacity, capacity, now)

    def admit(self, tokens: float, in_flight: int) -> float | None:
        """Take one request of ``tokens``; return None, or the seconds until it could be taken."""
        now = time.monotonic()
        amounts = {"requests": 1.0, "tokens": tokens}
        for bucket in self._buckets.values():
            bucket.refill(now)
        wait = max((bucket.wait(amounts[name]) for name, bucket in self._buckets.items()), default=0.0)
        if self.limits.max_concurrency is not None and in_flight > self.limits.max_concurrency:
            wait = max(wait, 0.05)
        if wait > 0:
            return wait
        for name, bucket in self._buckets.items():
            bucket.level -= amounts[name]
        return None

    def headers(self) -> dict[str, str]:
        lines = {}
        for name, bucket in self._buckets.items():
            lines[f"x-ratelimit-limit-{name}"] = str(int(bucket.per_minute))
            lines[f"x-ratelimit-remaining-{name}"] = str(max(0, int(bucket.level)))
            lines[f"x-ratelimit-reset-{name}"] = f"{bucket.wait(bucket.capacity):.3f}s"
        return lines

    def hint(self, wait: float) -> Mapping[str, str]:
        """Return the headers that tell a refused caller to wait that many seconds."""
        match self.limits.hint:
            case "seconds":
                return {"retry-after": f"{wait:.3f}"}
            case "milliseconds":
                return {"retry-after-ms": f"{wait * 1000:.0f}"}
            case "date":
                return {"retry-after": formatdate(time.time() + wait + 1, usegmt=True)}  # dates have whole seconds
            case "reset":
                return {f"x-ratelimit-reset-{name}": f"{wait:.3f}s" for name in self._buckets} | {
                    f"x-ratelimit-remaining-{name}": "0" for name in self._buckets
                }
            case "none":
                return {}
