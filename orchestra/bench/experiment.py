"""Goes through the rates of a load test, and knows at any time what was found so far."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from orchestra.bench.load.clock import Clock, LoopClock
from orchestra.bench.load.generator import LoadRun, Phases
from orchestra.bench.load.target import Target, printable
from orchestra.bench.load.workload import Load, Request
from orchestra.bench.report.report import Report
from orchestra.bench.results.figures import RateFigures, figures_of
from orchestra.bench.results.operating_point import advise
from orchestra.bench.results.slo import Slo
from orchestra.bench.sweep import Tried, first_rate, next_rate
from orchestra.clock import wall
from orchestra.errors import CallError, InputError, OrchestraError

__all__ = ["Experiment"]

_LONGER = "measure longer (--seconds)"


class Experiment:
    """One target under one load at several rates, one after another.

    ``watch`` is told a sentence when something begins, and the figures of each rate when they are known. `report`
    may be called at any time, also after the run was cancelled. ``nonce`` makes the words of its prompts unlike
    those of any other run; the report tells it.
    """

    def __init__(
        self,
        target: Target,
        load: Load,
        phases: Phases,
        *,
        slo: Slo | None = None,
        dollars_per_hour: float | None = None,
        clock: Clock | None = None,
        nonce: str | None = None,
        say: Callable[[str], None] = lambda sentence: None,
        watch: Callable[[RateFigures], None] = lambda figures: None,
    ) -> None:
        self._target = target
        self._load = load
        self._phases = phases
        self._slo = slo
        self._dollars_per_hour = dollars_per_hour
        self._clock = clock or LoopClock()
        self._say = say
        self._watch = watch
        self._nonce = secrets.token_hex(4) if nonce is None else nonce
        self._loads = 0
        self._started = wall()
        self._runs: list[tuple[float, LoadRun]] = []
        self._over = False

    async def run(self, rates: Sequence[float], *, sweep: bool = False) -> None:
        """Probe the target, then measure each of ``rates``, and with ``sweep`` go on until the edge is known.

        Raises CallError where the probe is not answered; nothing else was sent then.
        """
        await self._probe()
        found = [await self._measure(rate) for rate in rates]
        if sweep:
            first = rates[0] if rates else first_rate(await self._probe())  # the first also opened what it needs
            known = [one for one in found if one is not None]
            while not any(map(self._is_in_vain, known)):
                rate = next_rate([self._tried(one) for one in known], first)
                if rate is None or (one := await self._measure(rate)) is None:
                    break
                known.append(one)
        self._over = True

    async def _probe(self) -> float:
        """Ask once, as the first call of the load will, and return the seconds that it took."""
        request = next(self._salted(1.0))
        began, pieces = self._clock(), 0

        def came() -> None:
            nonlocal pieces
            pieces += 1

        try:
            await self._target.ask(request, came)
        except InputError:
            raise
        except OrchestraError as error:
            why = self._target.tell(error)
            raise CallError(f"{self._target.name} does not answer, and no load was sent: {why}") from error
        took = self._clock() - began
        if not pieces:
            raise CallError(f"{self._target.name} answered the probe without any text, and no load was sent")
        self._say(f"probe: answered in {took:.2f} s")
        return took

    def _salted(self, rate: float) -> Iterator[Request]:
        """Yield the calls of the load with words that were never asked before, neither at another rate nor by an
        earlier run: else the target has their prefixes in its cache."""
        self._loads += 1
        salt = f"{self._nonce} {self._loads}"
        return (replace(request, salt=salt) for request in self._load.requests(rate))

    async def _measure(self, rate: float) -> RateFigures | None:
        """Measure a rate. None where no call came in its window."""
        phases = self._phases
        self._say(f"{rate:.3g} calls/s: {phases.warm_up:g} s of warm-up, then {phases.seconds:g} s that count")
        run = LoadRun(self._target, phases, self._clock)
        self._runs.append((rate, run))
        await run.run(self._salted(rate))
        figures = self._figures(rate, run)
        if figures is None:
            remedy = "the load is over before it: warm up less (--warm-up)" if run.exhausted else _LONGER
            self._say(f"{rate:.3g} calls/s: no call came in the window; {remedy}")
            return None
        self._watch(figures)
        return figures

    def _tried(self, figures: RateFigures) -> Tried:
        good = not figures.saturated
        if self._slo is not None and figures.attainment is not None:
            good = figures.keeps(self._slo)
        return Tried(figures.rate, good, figures.saturated)

    def _is_in_vain(self, figures: RateFigures) -> bool:
        """Return whether higher rates would tell nothing of the target, and say why."""
        if figures.unjudged and figures.silent:
            self._say("the sweep ends here: no call had an end when nobody waited any longer; raise --drain")
        elif figures.unjudged:
            self._say("the sweep ends here: calls take so long that the target only fills up; raise --warm-up")
        elif figures.late and not self._tried(figures).good:
            self._say("the sweep ends here: this machine cannot send more calls in time, whatever the target can")
        else:
            return False
        return True

    def _figures(self, rate: float, run: LoadRun) -> RateFigures | None:
        window, calls = run.window, run.measurements()
        if window is None or not any(call.intended in window for call in calls):
            return None
        return figures_of(
            calls, rate, window, slo=self._slo, dollars_per_hour=self._dollars_per_hour, whole=run.whole
        )

    def report(self, settings: Mapping[str, str] | None = None) -> Report:
        """Return what was found so far. ``settings`` are told as they are."""
        found = [self._figures(rate, run) for rate, run in self._runs]
        points = sorted((one for one in found if one is not None), key=lambda one: one.rate)
        phases = self._phases
        told = {
            **self._load.describe(),
            "words of this run": self._nonce,
            "each rate": f"{phases.warm_up:g} s of warm-up, {phases.seconds:g} s that count, at most "
            f"{phases.drain:g} s of drain",
            **(settings or {}),
        }
        return Report(
            target=printable(self._target.name),
            settings={key: printable(value) for key, value in told.items()},
            started=self._started,
            slo=self._slo,
            points=points,
            advice=advise(points, self._slo),
            interrupted=not self._over,
            counts_pieces=any(run.counts_pieces for _, run in self._runs),
        )
