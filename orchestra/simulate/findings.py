"""What a simulation found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestra.bench.results.quantiles import Quantiles

__all__ = ["ClassFindings", "Findings", "JobFindings", "OutletFindings", "PoolFindings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFindings:
    """The calls of a class, the lines of jobs that went by themselves included. Times are in seconds.

    ``waits`` are for being let go, of calls that were; ``totals`` from a call's beginning to its answer.
    ``refusals``, ``errors`` and ``attempts`` that were made again are counted by reason. ``unfinished`` were under
    way at the end.
    """

    calls: int
    answered: int
    waits: Quantiles | None
    longest_wait: float
    totals: Quantiles | None
    refusals: Mapping[str, int]
    errors: Mapping[str, int]
    attempts: Mapping[str, int]
    unfinished: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutletFindings:
    """What one outlet answered. ``via`` is ``sync``, ``batch`` or ``local``; ``usd`` is None without a price.

    ``usd_sync`` is what the same tokens cost where they are answered at once, at the ordinary price of that route;
    of an engine, of the first priced route beside it. None where there is none.
    """

    route: str
    via: str
    calls: int
    input_tokens: int
    output_tokens: int
    usd: float | None
    usd_sync: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFindings:
    """A durable job: ``at`` is the second of the day at which it came, ``deadline`` is in seconds from then.

    ``seconds`` is how long it took until its last line had an end, None where it had none by the end of the
    simulation; ``is_open``: that was no interruption, and nobody waited for it any longer. ``expired`` counts the
    lines that missed the deadline. ``batched`` are lines that batches answered.
    """

    name: str
    at: float
    lines: int
    done: int
    failed: int
    expired: int
    batched: int
    deadline: float | None
    seconds: float | None
    usd: float
    stopped: str | None = None
    is_open: bool = False

    @property
    def kept(self) -> bool | None:
        """Whether every line had an end in time, which one that stopped or stayed open has not.

        None where there is no deadline, or where nobody knows, since the simulation was interrupted before.
        """
        if self.deadline is None:
            return None
        if self.seconds is None:
            return False if self.expired or self.is_open or self.stopped is not None else None
        return not self.expired


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFindings:
    """How much of one limit was used: ``hours`` are shares of what it allows in each hour."""

    pool: str
    limit: str
    allowed: float
    hours: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """``seconds`` were simulated, of ``asked_seconds`` and what it took until all was answered; ``cpu_seconds`` is
    how long that took here. ``engines`` are the shares of time in which engines were busy."""

    seconds: float
    asked_seconds: float
    starts_at: float
    is_interrupted: bool
    classes: Mapping[str, ClassFindings]
    outlets: Sequence[OutletFindings]
    jobs: Sequence[JobFindings]
    pools: Sequence[PoolFindings]
    engines: Mapping[str, float]
    engine_usd: float
    about: Mapping[str, str]
    cpu_seconds: float = 0.0

    @property
    def usd(self) -> float:
        """What is known of the cost, in USD."""
        return self.engine_usd + sum(outlet.usd or 0.0 for outlet in self.outlets)

    @property
    def usd_sync(self) -> float:
        """What the same would have cost where all of it is answered at once by providers, as far as is known."""
        return sum(outlet.usd_sync or 0.0 for outlet in self.outlets)

    @property
    def missed(self) -> int:
        """How many jobs did not keep their deadline."""
        return sum(job.kept is False for job in self.jobs)

    def as_json(self) -> dict[str, Any]:
        """Return all of it as plain values; the same for the same settings, traffic and seed."""
        told = asdict(self)
        del told["cpu_seconds"]
        for job, found in zip(told["jobs"], self.jobs, strict=True):
            job["kept"] = found.kept
        return {**told, "usd": self.usd, "usd_sync": self.usd_sync, "missed_deadlines": self.missed}
