"""What is told of the world that is not ours: how fast providers and engines answer, and when they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from orchestra.errors import InputError
from orchestra.simulate.clock_time import parse_clock_time
from orchestra.simulate.engine_speed import EngineSpeed
from orchestra.simulate.times import Times
from orchestra.testing import Limits

__all__ = ["EVERYBODY", "Outage", "Outside"]

EVERYBODY = ""
"""What stands for all providers that nothing else is said of."""


@dataclass(frozen=True, slots=True)
class Outage:
    """``provider`` (`EVERYBODY`: each) answers 503 between two seconds of the day, every day."""

    begin: float
    end: float
    provider: str = EVERYBODY

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``09:00-09:20`` or, of one provider, ``openai=09:00-09:20``. Raises InputError."""
        provider, _, hours = text.strip().rpartition("=")
        begin, _, end = hours.partition("-")
        try:
            found = cls(parse_clock_time(begin), parse_clock_time(end), provider.strip())
            if found.begin < found.end:
                return found
        except ValueError:
            pass
        raise InputError(f"{text!r} is no outage: write 09:00-09:20, or openai=09:00-09:20 for one provider")

    def covers(self, second: float) -> bool:
        """Return whether it is one at that second, counted from the beginning of the first day."""
        return self.begin <= second % 86_400.0 < self.end


@dataclass(frozen=True, slots=True)
class Outside:
    """The providers, by their names in the settings, and the engines, by theirs.

    ``ttft`` and ``tpot`` are the time to an answer's first token, and seconds between two; where neither is said
    of a provider, recorded calls take as long as they took. ``batch_time`` is how long batches take; ``failing``
    the share of requests that fail with 500 by lot. ``allows`` are limits that a provider enforces, where they are
    to differ from those of the settings, or to be learned; it tells them as it does in reality. Where nothing is
    said of a provider, what is said of `EVERYBODY` holds.
    """

    ttft: Mapping[str, Times] = field(default_factory=dict)
    tpot: Mapping[str, Times] = field(default_factory=dict)
    batch_time: Mapping[str, Times] = field(default_factory=dict)
    failing: Mapping[str, float] = field(default_factory=dict)
    outages: Sequence[Outage] = ()
    allows: Mapping[str, Limits] = field(default_factory=dict)
    engines: Mapping[str, EngineSpeed] = field(default_factory=dict)

    def check(self, providers: Mapping[str, object]) -> None:
        """Raise InputError where something is said of a provider that is none of ``providers``."""
        named = {*self.ttft, *self.tpot, *self.batch_time, *self.failing, *self.allows}
        named |= {outage.provider for outage in self.outages}
        for name in sorted(named - {EVERYBODY, *providers}):
            known = ", ".join(sorted(providers)) or "none"
            raise InputError(f"the settings have no provider {name!r}; they have: {known}")
