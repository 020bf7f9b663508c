"""What is to come: calls and durable jobs, before anything of them is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from orchestra.policies.traffic import TrafficClass

__all__ = ["Ask", "Burst", "Size", "Traffic"]


class Size(NamedTuple):
    """Of one request, in tokens: its prompt as we estimate it, the answer that it will get, the most that it asks
    for (None: it does not say), and its prompt as the provider counts it (None: as we do).

    ``seconds`` is how long its answer takes, where that is known: of a call that there was.
    """

    prompt: int
    output: int
    most_output: int | None = None
    counted_prompt: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A call to come, ``at`` seconds from the start.

    ``time_left`` is in how many seconds it must be let go, None where it waits as long as it takes. ``job`` is the
    job that a bulk call belongs to, for fairness among them.
    """

    at: float
    traffic: TrafficClass
    model: str
    size: Size
    time_left: float | None = None
    job: str | None = None


@dataclass(frozen=True, slots=True)
class Burst:
    """A durable job that is submitted ``at`` seconds from the start, with ``deadline`` seconds for all its lines
    (None: as long as it takes)."""

    name: str
    at: float
    model: str
    lines: Sequence[Size]
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """All that comes in ``seconds``: ``calls`` by their instants, and ``jobs``.

    ``starts_at`` is the second of the day with which it begins. ``about`` says in plain words what it is.
    """

    calls: Iterable[Ask]
    jobs: Sequence[Burst] = ()
    seconds: float = 86_400.0
    starts_at: float = 0.0
    about: Mapping[str, str] = field(default_factory=dict)
