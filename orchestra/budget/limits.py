"""From the settings to buckets: which limits hold for a model, and what each is made of."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase

from orchestra.budget.bucket import Bucket, Metric
from orchestra.budget.window import DAY, MINUTE, Window
from orchestra.config import LimitsConfig, PriceConfig

__all__ = [
    "batch_limits",
    "days_of",
    "describe_limit",
    "limits_for",
    "matches",
    "online_limits",
    "open_limit",
    "terms_of",
]

_BATCH = "enqueued_batch_tokens"
_PER_MINUTE: tuple[Metric, ...] = ("requests", "tokens", "input_tokens", "output_tokens")
_PER_DAY: tuple[Metric, ...] = (*_PER_MINUTE, "usd")
_METRICS: dict[str, Metric] = {
    **{metric: metric for metric in _PER_MINUTE},
    **{f"{metric}_per_day": metric for metric in _PER_DAY},
    "concurrency": "concurrency",
    _BATCH: "tokens",
}
"""What each dimension that can be configured counts, by its name."""


def matches(group: LimitsConfig | PriceConfig, model: str | None) -> bool:
    """Return whether one of a group's patterns fits the name of a model."""
    return any(fnmatchcase(model or "", pattern) for pattern in group.models)


def limits_for(limits: Iterable[LimitsConfig], model: str | None) -> LimitsConfig | None:
    """Return the first limit group whose patterns match the model, or None."""
    return next((group for group in limits if matches(group, model)), None)


def online_limits(limits: LimitsConfig | None, now: float) -> list[Bucket]:
    """Return the limits that calls take from, one bucket a dimension, full."""
    if limits is None:
        return []
    buckets: list[Bucket] = []
    for metric in _PER_MINUTE:
        limit: float | None = getattr(limits, f"{metric}_per_minute")
        if limit is not None:
            if limits.window == "fixed":
                buckets.append(Window(metric, capacity=limit, window=MINUTE, now=now))
            else:
                rate = limit / MINUTE
                buckets.append(Bucket(metric, capacity=rate * limits.burst_seconds, rate=rate, now=now))
    for name, limit in days_of(limits).items():
        buckets.append(Window(_METRICS[name], capacity=limit, window=DAY, now=now, name=name))
    if limits.max_concurrency is not None:
        buckets.append(Bucket("concurrency", capacity=limits.max_concurrency, now=now))
    return buckets


def days_of(limits: LimitsConfig) -> dict[str, float]:
    """Return the limits of a day that are set, by their keys."""
    names = (f"{metric}_per_day" for metric in _PER_DAY)
    return {name: limit for name in names if (limit := getattr(limits, name)) is not None}


def batch_limits(limits: LimitsConfig | None, now: float) -> list[Bucket]:
    """Return the limits that open batches take from: a stock of tokens that may be enqueued."""
    if limits is None or limits.enqueued_batch_tokens is None:
        return []
    return [Bucket(_METRICS[_BATCH], capacity=limits.enqueued_batch_tokens, now=now, name=_BATCH)]


def describe_limit(bucket: Bucket) -> dict[str, float | None]:
    """Return what a limit allows, and in how many seconds: in a minute where it refills, at once in a stock."""
    if bucket.window:
        return {"limit": bucket.capacity, "window": bucket.window}
    if bucket.rate:
        return {"limit": bucket.rate * MINUTE, "window": MINUTE}
    return {"limit": bucket.capacity if bucket.capacity < math.inf else None, "window": None}


def terms_of(bucket: Bucket) -> tuple[float, ...]:
    """Return what `open_limit` needs to make one like it: capacity and rate, and its window where it has one."""
    return (bucket.capacity, bucket.rate, *([bucket.window] if bucket.window else []))


def open_limit(name: str, terms: tuple[float, ...], now: float) -> Bucket:
    """Return the bucket of a dimension by name and terms. Raises ValueError where there is no such name."""
    metric = _METRICS.get(name)
    if metric is None:
        raise ValueError(f"no limit is called {name!r}")
    capacity, rate, *window = terms
    if window:
        return Window(metric, capacity=capacity, window=window[0], now=now, name=name)
    return Bucket(metric, capacity=capacity, rate=rate, now=now, name=name)
