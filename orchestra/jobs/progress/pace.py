"""How fast lines are answered that go by themselves, as far as the settings tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from orchestra.dispatch.accounts import Account
from orchestra.jobs.progress.progress import RateMeter
from orchestra.policies.diversion import SyncPace
from orchestra.providers import Endpoint

__all__ = ["AllowedPace", "BusyMeter", "Metered", "pace_of"]

_SAMPLE = 200
"""How many lines of a kind are looked at for how many tokens one takes."""
_BULK_SHARE = 0.85
"""What of a limit is thought to be bulk's: what the interactive reserve leaves at first."""
_METRICS = ("tokens", "input_tokens", "output_tokens")
_LEAST_BUSY = 3.0
"""Seconds that lines count as having taken at least: a short burst says little about a pace."""


class Metered(Protocol):
    """An endpoint and a model of an account that has limits."""

    @property
    def account(self) -> Account: ...
    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def model(self) -> str: ...


class AllowedPace:
    """What the configured limits of a route allow lines that are like those it has seen."""

    __slots__ = ("_route", "_seen", "_tokens")

    def __init__(self) -> None:
        self._route: Metered | None = None
        self._seen = 0
        self._tokens = dict.fromkeys(_METRICS, 0.0)

    def look(self, route: Metered, payload: Mapping[str, Any]) -> None:
        """Learn from a line how many tokens one takes."""
        self._route = route
        if self._seen < _SAMPLE:
            self._seen += 1
            charge = route.account.provider.charge(route.endpoint, payload)
            for metric in _METRICS:
                self._tokens[metric] += getattr(charge, metric)

    def lines_per_second(self) -> float | None:
        """Return what bulk gets of the limits; None where none is set."""
        route = self._route
        limits = None if route is None else route.account.limits(route.model)
        if limits is None:
            return None
        minute = []
        if limits.requests_per_minute is not None:
            minute.append(limits.requests_per_minute)
        for metric, tokens in self._tokens.items():
            limit: float | None = getattr(limits, f"{metric}_per_minute")
            if limit is not None and tokens:
                minute.append(limit * self._seen / tokens)
        return _BULK_SHARE * min(minute) / 60.0 if minute else None


class BusyMeter:
    """How many lines a second are answered while some are under way: to have nothing to do is not to be slow.

    Pure: the caller brings the clock.
    """

    __slots__ = ("_busy", "_meter", "_since")

    def __init__(self) -> None:
        self._meter = RateMeter(0.0)
        self._busy = 0.0
        self._since: float | None = None

    def work(self, under_way: bool, now: float) -> None:
        """Hear whether lines are under way."""
        if not under_way:
            self._busy, self._since = self._at(now), None
        elif self._since is None:
            self._since = now

    def add(self, now: float, count: int) -> None:
        """Count so many more answers."""
        self._meter.add(self._at(now), count)

    def rate(self, now: float) -> float | None:
        """Return lines a second, or None where there was none yet."""
        return self._meter.rate(max(_LEAST_BUSY, self._at(now)))

    def _at(self, now: float) -> float:
        since = self._since
        return self._busy + (0.0 if since is None else now - since)


def pace_of(kinds: Iterable[AllowedPace], measured: float | None = None) -> SyncPace:
    """Return the pace of lines of several kinds: what was measured, or what the slowest of them is allowed."""
    allowed = [rate for kind in kinds if (rate := kind.lines_per_second()) is not None]
    known = [rate for rate in (measured, min(allowed, default=None)) if rate is not None]
    return SyncPace(max(known, default=None))
