"""What is measured: the account, the load, and what is expected of the client that this repository is about."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["CHUNK", "VARIANTS", "WARM_UP", "Scenario", "Targets"]

CHUNK = 16
"""Characters of a streamed answer that come at a time."""
WARM_UP = 5.0
"""Seconds from the start after which the burst that a full account allows is spent."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What is expected of us. Times in seconds, the others as shares."""

    p50: float | None = None
    p99: float | None = None
    refused: float | None = None
    used: float | None = None
    of_best_peer: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """An account and a load.

    ``changes`` are pairs of seconds from the start and a factor of the limits; ``tenant`` is the share that
    another takes of every refill, and for how long it is on and off. Use and refusals count from ``settle``
    seconds after the start, or after each change; without it refusals count from the first call on. ``fits`` says
    who can be measured: a client that must be told its limits cannot where they are ``untold``.
    """

    name: str
    about: str
    targets: Targets
    requests_per_minute: float = 600.0
    tokens_per_minute: float = 90_000.0
    burst_seconds: float = 10.0
    told: bool = True
    headers: Literal["limits", "retry-after", "none"] = "limits"
    changes: tuple[tuple[float, float], ...] = ()
    tenant: tuple[float, float, float] | None = None
    tokens_per_character: float = 0.25
    service_time: float = 0.4
    stream_gap: float = 0.0
    seconds: float = 40.0
    settle: float = 0.0
    bulk: int = 2000
    interactive_per_second: float = 1.5
    interactive_burst: int = 0
    burst_every: float = 10.0
    prompt_characters: tuple[int, int] = (160, 360)
    output_tokens: int = 40
    loops: int = 1
    processes: int = 1
    seed: int = 7
    fits: Literal["all", "untold", "ours"] = "all"

    @property
    def service(self) -> float:
        """The seconds in which an unhindered call is answered."""
        chunks = -(-len(self.text) // CHUNK)
        return self.service_time + self.stream_gap * (chunks - 1)

    @property
    def text(self) -> str:
        """What every call is answered with."""
        return "word " * (self.output_tokens * 4 // 5)

    @property
    def grace(self) -> float:
        """What the last calls get beyond the end: as much as it takes to see that they are late."""
        return self.service + 2.0

    def arrivals(self) -> list[float]:
        """Return the instants of the interactive calls, from the start: Poisson, or bursts."""
        if self.interactive_burst:
            bursts = int(self.seconds // self.burst_every)
            return [
                burst * self.burst_every + 5.0 for burst in range(bursts) for _ in range(self.interactive_burst)
            ]
        rand = random.Random(self.seed)
        instants, at = [], rand.expovariate(self.interactive_per_second)
        while at < self.seconds:
            instants.append(at)
            at += rand.expovariate(self.interactive_per_second)
        return instants

    def load(self, base_url: str, process: int = 0, shared: str | None = None) -> dict[str, Any]:
        """Return what one of the client's processes is to carry, and what it is told."""
        return {
            "base_url": base_url,
            "seconds": self.seconds,
            "grace": self.grace,
            "bulk": self.bulk // self.processes,
            "arrivals": self.arrivals()[process :: self.processes],
            "max_tokens": self.output_tokens + 8,
            "prompt_characters": self.prompt_characters,
            "requests_per_minute": self.requests_per_minute if self.told else None,
            "tokens_per_minute": self.tokens_per_minute if self.told else None,
            "burst_seconds": self.burst_seconds,
            "stream": self.stream_gap > 0,
            "loops": self.loops,
            "seed": self.seed + process,
            "shared": shared,
        }

    def windows(self) -> list[tuple[float, float]]:
        """Return the spans, from the start, in which the use of the limit counts."""
        if not self.changes:
            return [(self.settle or WARM_UP, self.seconds)]
        ends = [at for at, _ in self.changes[1:]] + [self.seconds]
        return [(at + self.settle, end) for (at, _), end in zip(self.changes, ends, strict=True)]

    def factor(self, at: float) -> float:
        """Return what of the limits holds at an instant from the start."""
        return next((factor for since, factor in reversed(self.changes) if since <= at), 1.0)


FOREVER = 1e9
_MIXED = Targets(p50=0.015, p99=0.05, refused=0.005, used=0.98, of_best_peer=0.95)

VARIANTS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "base", "a backlog of 2,000 bulk calls, 1.5 interactive calls a second; requests are scarce", _MIXED
        ),
        Scenario("tokens", "the same; tokens are scarce", _MIXED, tokens_per_minute=45_000.0),
        Scenario(
            "streams", "the same as base; every answer is streamed", _MIXED, service_time=0.2, stream_gap=0.02
        ),
        Scenario(
            "bursts",
            "15 interactive calls at once, every 10 s",
            Targets(p99=0.25, used=0.93),
            interactive_burst=15,
        ),
        Scenario("loops", "two event loops, in two threads, share the account", _MIXED, loops=2, fits="ours"),
        Scenario(
            "processes",
            "four processes share the account through SQLite",
            Targets(p99=0.25, used=0.93, refused=0.0),
            processes=4,
            fits="ours",
        ),
        Scenario(
            "estimates-low",
            "prompts count three times what their characters say",
            Targets(),
            tokens_per_character=0.75,
        ),
        Scenario(
            "estimates-high",
            "prompts count a third of what their characters say; tokens are scarce",
            Targets(),
            tokens_per_minute=30_000.0,
            tokens_per_character=0.25 / 3,
        ),
        Scenario(
            "untold",
            "the client is not told the limits, answers tell them",
            Targets(p99=0.5, refused=0.02, used=0.93),
            told=False,
            fits="untold",
        ),
        Scenario(
            "tenant",
            "another tenant takes 40 % of the account, steadily",
            Targets(p99=0.1, refused=0.005, used=0.95),
            tenant=(0.4, FOREVER, 0.0),
        ),
        Scenario(
            "tenant-alternating",
            "another tenant takes 80 % for 10 s, then nothing for 10 s, and so on",
            Targets(p99=1.5, refused=0.02, used=0.85),
            tenant=(0.8, 10.0, 10.0),
            seconds=60.0,
        ),
        Scenario(
            "changing",
            "the limits halve, then double; the client is not told",
            Targets(refused=0.03, used=0.9),
            told=False,
            changes=((20.0, 0.5), (50.0, 1.0)),
            settle=15.0,
            seconds=80.0,
            fits="untold",
        ),
        Scenario(
            "silent",
            "the client is not told the limits, and no answer tells anything",
            Targets(refused=0.05, used=0.85),
            told=False,
            headers="none",
            settle=10.0,
            fits="untold",
        ),
    )
}
"""Every variant by its name."""
