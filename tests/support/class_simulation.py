"""The step loop over endless bulk and a few interactive requests, in virtual time.

Planner, books, limits, step-time model and the rule of abandonment are the engine's own. Only the model is left
out: a step takes what ``TRUTH`` says, give or take some noise, and draws tokens at random.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestra.localengine.config import EngineConfig
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.scheduling.abandonment import Abandonment
from orchestra.localengine.scheduling.apply import apply_plan, commit_step
from orchestra.localengine.scheduling.blocks import BlockPool
from orchestra.localengine.scheduling.classes import ClassLimits
from orchestra.localengine.scheduling.cost import CostModel, StepCost
from orchestra.localengine.scheduling.schedulers import SCHEDULERS
from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.localengine.scheduling.state import SchedulerState
from orchestra.localengine.scheduling.step_plan import StepBudget, StepPlan
from orchestra.localengine.settled_config import SettledConfig
from orchestra.localengine.step import RowOutput
from orchestra.policies.traffic import TrafficClass

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK
TRUTH = StepCost()  # a model of 135 M parameters on two cores
LAYERS = 30
NOISE = 0.05
WARM_UP = 30.0  # seconds until anything counts: the engine learns its machine


@dataclass
class Outcome:
    """Seconds from each interactive request's arrival to its first token, and between its tokens, on average.

    ``bulk``: output tokens a second.
    """

    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    bulk: float = 0.0
    displaced: int = 0
    abandoned: int = 0


class ClassSimulation:
    """``arrivals`` interactive requests (40 tokens, then 32), 0.3 a second; ``bulk`` requests always under way.

    With ``abandons`` False, every step is run to its end.
    """

    def __init__(
        self, config: EngineConfig, *, arrivals: int, bulk: int, seed: int = 0, abandons: bool = True
    ) -> None:
        self._config = SettledConfig.on_cpu(config)
        self._abandons = abandons and config.scheduler == "classes"
        self._state = SchedulerState(ClassLimits.of(self._config, 700), BlockPool(700, config.block_size))
        self._cost = CostModel()
        self._rule = Abandonment(lambda: self._next_arrival() <= self._now, lambda: self._now)
        self._now = 0.0
        self._bulk = bulk
        self._lengths = random.Random(f"bulk {seed}")
        self._noise = random.Random(f"noise {seed}")
        gaps = random.Random(f"arrivals {seed}")
        times = itertools.accumulate((gaps.expovariate(0.3) for _ in range(arrivals)), initial=WARM_UP)
        self._arrivals = list(times)[1:]
        self._times: dict[int, list[float]] = {}  # of each request: its arrival, then its tokens
        self._outcome = Outcome()
        self._bulk_tokens = 0

    def run(self, seconds: float = math.inf) -> Outcome:
        """Go on until all interactive requests have ended, or for so long after the warm-up."""
        for _ in range(self._bulk):
            self._call(BULK)
        while self._now < WARM_UP + seconds:
            while self._next_arrival() <= self._now:
                self._times[self._call(INTERACTIVE)][0] = self._arrivals.pop(0)
            if not self._arrivals and not self._waits_or_runs(INTERACTIVE) and math.isinf(seconds):
                break
            if self._state.has_work:
                self._step()
            else:
                self._now = self._next_arrival()
        self._outcome.bulk = self._bulk_tokens / (self._now - WARM_UP)
        return self._outcome

    def _step(self) -> None:
        cost = self._cost.cost
        target = self._config.tpot_target_ms / 1000
        drawn = [self._times[request_id][1:] for request_id in self._state.running[INTERACTIVE]]
        due = min((target * len(own) + own[0] - self._now for own in drawn if own), default=math.inf)
        budget = StepBudget.of(self._config, cost, due)
        plan = SCHEDULERS[self._config.scheduler](self._state, budget, cost)
        apply_plan(self._state, plan)
        began, took = self._now, TRUTH.predict(plan.load) * max(0.5, self._noise.gauss(1, NOISE))
        abandon = self._rule.watch(self._state, plan) if self._abandons else None
        for layer in range(LAYERS):
            self._now = began + took * layer / LAYERS
            if abandon is not None and abandon():
                self._rule.abandoned()
                self._outcome.abandoned += 1
                return
        self._now = began + took
        self._cost.observe(plan.load, took)
        self._outcome.displaced += len(plan.displaced)
        for seq, _ in commit_step(self._state, plan, self._draw(plan)):
            self._times[seq.request_id].append(self._now)
            self._bulk_tokens += seq.traffic is BULK and self._now > WARM_UP
            if seq.num_output == seq.max_tokens:
                self._end(seq)

    def _draw(self, plan: StepPlan) -> Iterator[RowOutput]:
        for row in plan.rows:
            if row.sampled:
                yield RowOutput(row.request_id, row.epoch, self._lengths.randrange(50_000))

    def _end(self, seq: Sequence) -> None:
        self._state.growth.observe(seq)
        self._state.remove(seq.request_id)
        if seq.traffic is BULK:
            self._call(BULK)
        else:
            arrived, first, *_, last = self._times[seq.request_id]
            self._outcome.ttft.append(first - arrived)
            self._outcome.tpot.append((last - first) / (seq.num_output - 1))

    def _call(self, traffic: TrafficClass) -> int:
        prompt, output = 40, 32
        if traffic is BULK:
            prompt = min(400, max(16, int(self._lengths.lognormvariate(math.log(90), 0.8))))
            output = min(160, max(8, int(self._lengths.lognormvariate(math.log(40), 0.8))))
        number = len(self._times)
        self._times[number] = [self._now]
        self._state.add(
            Sequence(
                request_id=number,
                traffic=traffic,
                arrival=number,
                token_ids=[self._lengths.randrange(50_000) for _ in range(prompt)],
                max_tokens=output,
                sampling=SamplingParams(max_tokens=output),
            )
        )
        return number

    def _next_arrival(self) -> float:
        return self._arrivals[0] if self._arrivals else math.inf

    def _waits_or_runs(self, traffic: TrafficClass) -> bool:
        return bool(self._state.running[traffic] or self._state.waiting[traffic])
