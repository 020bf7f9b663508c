"""How far a job is, how fast, where its lines are, and what it has cost."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from orchestra.durations import format_duration
from orchestra.jobs.ledger.record import OutletTally

__all__ = ["MachineCost", "OpenBatch", "Progress", "RateMeter", "counted", "format_usd"]

_AT_ONCE = ("sync", "local")
"""The ways of answering that do not wait."""
_TELLING = 5
"""How many events make a rate that says when others come: of one or two it says how long they took."""


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that is not over. Times are unix times.

    ``state`` is ours (see `BatchStage`); ``status`` and ``batch_id`` are the provider's words for it, None until
    it has it. Of the ``lines`` that were put in, ``riding`` still wait for it. ``account`` is the fingerprint of
    the key. ``expected`` is when it ought to be back by what such batches took before, ``next_look`` when the
    provider is asked again, where this process does that; None where nobody knows.
    """

    id: int
    route: str
    provider: str
    account: str
    state: str
    status: str | None
    batch_id: str | None
    lines: int
    riding: int
    opened: float
    expected: float | None = None
    next_look: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a job stands, by its ledger: what providers count decides nothing here.

    ``whole`` is False while its lines are still coming in; until then ``total`` counts those that are in, or of a
    file that was checked those that there are. ``rate`` is in lines per second over the last half minute, and
    ``seconds_left`` what that rate promises for lines that go by themselves, and the durations of earlier batches
    for those that ride; both are None where they are not known, as for a job that this process does not run.
    ``seconds_left`` is told from the fifth line on, and not while the job waits.
    ``deadline`` (unix time) holds in any case. ``waiting`` says why nothing is sent just now, and until when,
    where faults that are not the lines' own have come.

    ``outlets`` say what each way of answering did; ``batches`` are those that are not over; ``left_batches``
    counts lines that left one without an answer, and went on otherwise. ``usd`` is what is known of the cost, and
    ``unpriced`` counts answered lines of whose cost nothing is known. ``usd_per_million`` is what a million tokens
    cost on each local engine whose machine has a price by the hour.
    """

    total: int
    done: int
    failed: int
    input_tokens: int
    output_tokens: int
    whole: bool
    rate: float | None = None
    seconds_left: float | None = None
    waiting: str | None = None
    deadline: float | None = None
    usd: float = 0.0
    unpriced: int = 0
    outlets: tuple[OutletTally, ...] = ()
    batches: tuple[OpenBatch, ...] = ()
    left_batches: int = 0
    usd_per_million: Mapping[str, float] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return it as plain values, which JSON brings back as they are."""
        told = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}

    @classmethod
    def from_plain(cls, told: Mapping[str, Any]) -> Self:
        """Return what was made `plain`. Raises TypeError where ``told`` is nothing of the kind."""
        parts = {"outlets": OutletTally, "batches": OpenBatch}
        values = _known(cls, told)
        for name, part in parts.items():
            values[name] = tuple(part(**_known(part, one)) for one in values.get(name, ()))
        return cls(**values)

    @property
    def pending(self) -> int:
        return self.total - self.done - self.failed

    @property
    def ended(self) -> bool:
        """Whether every line has an end."""
        return self.whole and not self.pending

    @property
    def riding(self) -> int:
        """How many lines wait for a batch."""
        return sum(batch.riding for batch in self.batches)

    @property
    def riding_by_state(self) -> dict[str, int]:
        """How many lines wait for batches of each state: see `BatchStage`."""
        states: Counter[str] = Counter()
        for batch in self.batches:
            states[batch.state] += batch.riding
        return dict(states)

    @property
    def deferred(self) -> float | None:
        """Which share of the answered lines went a way that takes its time; None where none was answered.

        Mostly that is cheaper, by what the provider's price says.
        """
        return self.share(outlet for outlet in self.outlets if outlet.via not in _AT_ONCE)

    def share(self, outlets: Iterable[OutletTally]) -> float | None:
        """Return which share of the answered lines these are; None where none was answered."""
        return sum(outlet.lines - outlet.failed for outlet in outlets) / self.done if self.done else None

    def __str__(self) -> str:
        if not self.whole and not self.total:
            return "reading the requests"
        text = f"{self.done + self.failed} of {self.total} lines{'' if self.whole else ', not all read yet'}"
        if self.failed:
            text += f", {self.failed} failed"
        if self.batches:
            text += f", {self.riding} in {counted(len(self.batches), 'batch', 'batches')}"
        if self.rate is not None:
            text += f", {_rate(self.rate)}"
        if self.usd:
            text += f", {format_usd(self.usd)} so far"
        if self.seconds_left is not None and self.pending:
            text += f", about {format_duration(self.seconds_left)} left"
        return text


def _known(kind: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that we know of: a program of another version may tell others."""
    return {one.name: told[one.name] for one in fields(kind) if one.name in told}


def counted(count: int, one: str, several: str) -> str:
    """Return ``count`` with the word for so many."""
    return f"{count:,} {one if count == 1 else several}"


def _rate(rate: float) -> str:
    """Return lines a second as a text that is never nought."""
    return f"{rate:.1f} lines/s" if rate >= 0.1 else f"{60 * rate:.1f} lines/min"


def format_usd(usd: float) -> str:
    """Return a sum of money as a short text: ``$12.30``, ``$0.0042``."""
    if 0 < usd < 1e-6:
        return "less than $0.000001"
    cents = f"{float(f'{usd:.2g}'):.7f}".rstrip("0") if usd < 1 else f"{usd:,.2f}"
    whole, _, rest = cents.partition(".")
    return f"${whole}.{rest:0<2}"


class RateMeter:
    """The rate of events over the last ``window`` seconds. Pure: the caller brings the clock.

    One thread adds; any may ask.
    """

    def __init__(self, started: float, *, window: float = 30.0) -> None:
        self._window = window
        self._marks: deque[tuple[float, int]] = deque([(started, 0)])

    def add(self, now: float, count: int) -> None:
        """Count ``count`` more events."""
        last, total = self._marks[-1]
        # marks closer than this would only fill memory
        if len(self._marks) > 1 and now - last < self._window / 100:
            self._marks[-1] = (last, total + count)
        else:
            self._marks.append((now, total + count))
        self._forget(now)

    def rate(self, now: float) -> float | None:
        """Return events per second, or None where there was none yet."""
        marks = self._marks.copy()
        while len(marks) > 2 and marks[1][0] <= now - self._window:
            marks.popleft()
        began, before = marks[0]
        total = marks[-1][1]
        return (total - before) / (now - began) if total > before and now > began else None

    def seconds_for(self, count: int, now: float) -> float | None:
        """Return in how many seconds ``count`` more events come at that rate; None where too few did to tell."""
        rate = self.rate(now) if self._marks[-1][1] >= _TELLING else None
        return count / rate if rate else None

    def _forget(self, now: float) -> None:
        while len(self._marks) > 2 and self._marks[1][0] <= now - self._window:
            self._marks.popleft()


class MachineCost:
    """What a million tokens, in and out, cost on machines that are paid by the hour. Pure.

    ``dollars_per_hour`` is by route. ``outlets`` are what was there at ``started``: only what comes after is
    counted, and time up to the last of it. Instants are seconds on the caller's clock.
    """

    def __init__(
        self, dollars_per_hour: Mapping[str, float], started: float, outlets: Sequence[OutletTally] = ()
    ) -> None:
        self._prices = dollars_per_hour
        self._started = started
        self._before = self._tokens(outlets)
        self._last = dict.fromkeys(self._prices, (0, started))

    def look(self, now: float, outlets: Sequence[OutletTally]) -> dict[str, float]:
        """Return the dollars per million tokens of each route that has answered since the start."""
        costs = {}
        for route, tokens in self._tokens(outlets).items():
            made = tokens - self._before.get(route, 0)
            if made > self._last[route][0]:
                self._last[route] = (made, now)
            made, until = self._last[route]
            if made:
                costs[route] = self._prices[route] * (until - self._started) / 3600 / made * 1e6
        return costs

    def _tokens(self, outlets: Sequence[OutletTally]) -> dict[str, int]:
        return {
            outlet.route: outlet.input_tokens + outlet.output_tokens
            for outlet in outlets
            if outlet.route is not None and outlet.via == "local" and outlet.route in self._prices
        }
