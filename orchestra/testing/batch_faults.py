"""Faults that befall the batch endpoints of a `ScriptedProvider` at random."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, fields, replace

from orchestra.testing.script import Reply

__all__ = ["BatchFaults", "Mishaps"]


@dataclass(frozen=True, slots=True)
class BatchFaults:
    """How often something goes wrong with the requests about batches, each a probability from 0 to 1.

    ``lost_creations``: a batch is created, and nothing is answered. ``refused_polls``: 503, and nothing else
    happens. ``lost_uploads``: a file is kept, and nothing is answered. ``cut_results``: results break off on the
    way. ``seed`` makes them the same every time, for the same requests in the same order. What a script or a route
    says of a request goes before.
    """

    lost_creations: float = 0.0
    refused_polls: float = 0.0
    lost_uploads: float = 0.0
    cut_results: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for one in fields(self)[:-1]:
            if not 0 <= getattr(self, one.name) <= 1:
                raise ValueError(f"{one.name} must be a probability from 0 to 1, not {getattr(self, one.name)!r}")


class Mishaps:
    """Lets `BatchFaults` happen, and counts them in ``seen``, by their names."""

    def __init__(self, faults: BatchFaults) -> None:
        self.faults = faults
        self.seen: Counter[str] = Counter()
        self._dice = random.Random(faults.seed)

    def creation(self, usual: Reply) -> Reply:
        return replace(usual, drop=True) if self._happens("lost_creations") else usual

    def upload(self, usual: Reply) -> Reply:
        return replace(usual, drop=True) if self._happens("lost_uploads") else usual

    def poll(self, usual: Reply) -> Reply:
        return Reply.error(503, "server_is_overloaded") if self._happens("refused_polls") else usual

    def results(self, usual: Reply) -> Reply:
        return replace(usual, cut_after=self._dice.randrange(65536)) if self._happens("cut_results") else usual

    def _happens(self, fault: str) -> bool:
        chance: float = getattr(self.faults, fault)
        happens = chance > 0 and self._dice.random() < chance
        if happens:
            self.seen[fault] += 1
        return happens
