"""What was seen of running programs over the last minutes: for rates, and for lines that show how it went.

Pure: instants are given. It is kept by who looks, so it begins when the looking does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["History", "Look", "engine_key", "look_at", "pool_key"]

KEEP_SECONDS = 300.0
_CLASSES = ("interactive", "bulk")

Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """The numbers of one look: ``levels`` are what there is now, ``totals`` only ever grow."""

    levels: dict[Key, float] = field(default_factory=dict)
    totals: dict[Key, float] = field(default_factory=dict)


class History:
    """The levels, and the growth of the totals in a second, of the last ``keep`` seconds."""

    def __init__(self, *, keep: float = KEEP_SECONDS) -> None:
        self.keep = keep
        self._series: dict[Key, deque[tuple[float, float]]] = {}
        self._before: tuple[float, dict[Key, float]] | None = None
        self._now = float("-inf")

    def add(self, at: float, look: Look) -> None:
        """Take a look that was had at ``at``, in seconds of any steady clock. Earlier ones came before."""
        self._now = at
        for key, level in look.levels.items():
            self._put(key, at, level)
        if self._before is not None and at > self._before[0]:
            since, before = self._before
            for key, total in look.totals.items():
                if key in before:
                    grown = total - before[key]
                    # what has begun anew, since its program or engine did, is at what it has since then
                    self._put(key, at, (grown if grown >= 0 else total) / (at - since))
        self._before = (at, dict(look.totals))
        for key in [key for key, series in self._series.items() if series[-1][0] <= at - self.keep]:
            del self._series[key]

    def latest(self, key: Key) -> float | None:
        """Return the level, or the growth in a second, of the latest look; None where it had none."""
        series = self._series.get(key)
        return series[-1][1] if series and series[-1][0] == self._now else None

    def line(self, key: Key, columns: int) -> Sequence[float | None]:
        """Return the last ``keep`` seconds in as many parts: the most of each, None where nobody looked."""
        parts: list[float | None] = [None] * columns
        for at, value in self._series.get(key, ()):
            place = columns - 1 - int((self._now - at) / self.keep * columns)
            if place >= 0:
                parts[place] = max(value, parts[place] or 0.0)
        return parts

    def _put(self, key: Key, at: float, value: float) -> None:
        series = self._series.setdefault(key, deque())
        series.append((at, value))
        while series[0][0] <= at - self.keep:
            series.popleft()


def look_at(report: Mapping[str, Any]) -> Look:
    """Return the numbers of a report of ``orchestra status``, by `pool_key` and `engine_key`.

    A process that tells nothing, or nothing that is understood, has none.
    """
    look = Look()
    for process in report["processes"]:
        try:
            levels, totals = _numbers(process)
        except (AttributeError, LookupError, TypeError, ValueError):
            continue
        look.levels.update(levels)
        look.totals.update(totals)
    return look


def pool_key(process: Mapping[str, Any], pool: Mapping[str, Any]) -> Key:
    """Return what tells the pools of all processes apart."""
    return (*_process_key(process), "pool", pool["provider"], pool["key"], *pool["models"], pool.get("kind"))


def engine_key(process: Mapping[str, Any], name: str) -> Key:
    """Return what tells the engines of all processes apart."""
    return (*_process_key(process), "engine", name)


def _process_key(process: Mapping[str, Any]) -> Key:
    return (process["pid"], process.get("instance", 1))


def _numbers(process: Mapping[str, Any]) -> tuple[dict[Key, float], dict[Key, float]]:
    levels: dict[Key, float] = {}
    totals: dict[Key, float] = {}
    snapshot = process.get("snapshot") or {}
    for pool in snapshot.get("pools", ()):
        key = pool_key(process, pool)
        levels.update(_of_classes(key, "waiting", pool))
        levels.update(_of_classes(key, "in_use", pool))
        totals.update(_of_classes(key, "granted", pool))
    for name, told in snapshot.get("local", {}).items():
        if told.get("state") != "running":
            continue
        key = engine_key(process, name)
        levels.update(_of_classes(key, "running", told))
        levels.update(_of_classes(key, "waiting", told))
        for counter in ("steps", "prefill_tokens", "output_tokens"):
            totals[*key, counter] = float(told[counter])
    return levels, totals


def _of_classes(key: Key, field: str, told: Mapping[str, Any]) -> Iterator[tuple[Key, float]]:
    for traffic in _CLASSES:
        yield (*key, field, traffic), float(told[field].get(traffic, 0))
