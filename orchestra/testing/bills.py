"""What a `ScriptedProvider` was paid for: whether anything was paid twice is what a test wants to know."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Bill", "Bills", "request_key"]

# how an answer is wanted, or at which price: not what is asked
_MANNER = frozenset({"stream", "stream_options", "service_tier"})
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Bill:
    """How often something was answered and paid: at the full price, and at that of batches."""

    sync: int = 0
    batch: int = 0

    @property
    def total(self) -> int:
        return self.sync + self.batch


class Bills:
    """Every answer that a provider was paid for. Errors cost nothing, nor do lines of a batch without an answer.

    Requests are told apart by what they ask (`request_key`); the lines of batches by their custom ids as well.
    """

    def __init__(self) -> None:
        self._sync: Counter[str] = Counter()
        self._batch: Counter[str] = Counter()
        self._ids: Counter[str] = Counter()

    def add_sync(self, payload: Mapping[str, Any]) -> None:
        """Note an answer at the full price."""
        self._sync[request_key(payload)] += 1

    def add_line(self, custom_id: str, payload: Mapping[str, Any]) -> None:
        """Note an answered line of a batch."""
        self._batch[request_key(payload)] += 1
        self._ids[custom_id] += 1

    @property
    def all(self) -> Bill:
        """All answers."""
        return Bill(self._sync.total(), self._batch.total())

    def of(self, payload: Mapping[str, Any]) -> Bill:
        """Return how often the request was answered whose body this is."""
        key = request_key(payload)
        return Bill(self._sync[key], self._batch[key])

    def of_id(self, custom_id: str) -> int:
        """Return how often a line of this custom id was answered in batches."""
        return self._ids[custom_id]

    def ids_paid_twice(self) -> dict[str, int]:
        """Return the custom ids of batches that were answered more than once, and how often."""
        return {custom_id: count for custom_id, count in self._ids.items() if count > 1}

    def requests_paid_twice(self) -> dict[str, Bill]:
        """Return the requests that were answered more than once, at whatever price, by their `request_key`."""
        counts = self._sync + self._batch
        return {key: Bill(self._sync[key], self._batch[key]) for key, count in counts.items() if count > 1}


def request_key(payload: Mapping[str, Any]) -> str:
    """Return a short hash of what a request asks: its body without ``stream`` and ``service_tier``."""
    asked = {name: value for name, value in payload.items() if name not in _MANNER}
    return hashlib.sha256(_canonical(asked).encode()).hexdigest()[:24]
