"""What each class may lose to the other, in virtual time: the targets of benchmarks/mixed_classes.py.

On a real machine they are measured there; here a change of the scheduler cannot break them unseen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest
from class_simulation import ClassSimulation, Outcome
from engine_lab import Lab

from orchestra.localengine import EngineConfig
from orchestra.localengine.config import SchedulerName
from orchestra.localengine.scheduling.cost import StepCost
from orchestra.localengine.scheduling.step_plan import StepBudget
from orchestra.localengine.settled_config import SettledConfig
from orchestra.policies.traffic import TrafficClass

ARRIVALS = 60


def p95(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


@pytest.fixture(scope="module")
def alone() -> Outcome:
    return ClassSimulation(EngineConfig(), arrivals=ARRIVALS, bulk=0).run()


@pytest.fixture(scope="module")
def both() -> Outcome:
    return mixed()


def mixed(scheduler: SchedulerName = "classes", *, abandons: bool = True) -> Outcome:
    config = EngineConfig(scheduler=scheduler)
    return ClassSimulation(config, arrivals=ARRIVALS, bulk=32, abandons=abandons).run()


def test_interactive_waits_at_most_twice_as_long_beside_endless_bulk_which_keeps_four_fifths(
    alone: Outcome, both: Outcome
):
    bulk = ClassSimulation(EngineConfig(), arrivals=0, bulk=32).run(ARRIVALS / 0.3)
    assert len(both.ttft) == len(alone.ttft) == ARRIVALS
    assert p95(both.ttft) <= 2 * p95(alone.ttft)
    assert p95(both.tpot) <= 0.150 * 1.05  # the noise of a step's time is on top of what is planned
    assert both.bulk >= 0.8 * bulk.bulk
    assert both.abandoned > 0


def test_first_tokens_come_sooner_where_steps_of_bulk_are_given_up_for_them(both: Outcome):
    assert fmean(both.ttft) <= 0.95 * fmean(mixed(abandons=False).ttft)


@pytest.mark.parametrize(("scheduler", "times"), [("priority", 3), ("fcfs", 30)])
def test_other_schedulers_let_interactive_requests_wait_many_times_as_long(
    both: Outcome, scheduler: SchedulerName, times: int
):
    other = mixed(scheduler)
    assert p95(other.ttft) >= times * p95(both.ttft)
    assert p95(other.tpot) > 0.150
    assert other.abandoned == 0


def test_who_is_behind_its_target_has_its_next_token_sooner():
    config, cost = SettledConfig.on_cpu(EngineConfig(tpot_target_ms=150.0)), StepCost(base=0.02, error=0.0)
    usual = StepBudget.of(config, cost)
    assert StepBudget.of(config, cost, due=0.2).tpot == usual.tpot, "one that is early is no reason for long steps"
    assert StepBudget.of(config, cost, due=0.1).catch_up == pytest.approx(0.1)
    assert StepBudget.of(config, cost, due=-1.0).catch_up == pytest.approx(0.03), "what a step takes at least"


def test_only_bulk_pays_for_a_request_that_is_behind():
    """Were the prompts of other people to wait as well, steps would do the less the more people there are."""
    lab = Lab(tpot=0.2)
    lab.budget = replace(lab.budget, catch_up=0.06)
    behind = lab.add(TrafficClass.INTERACTIVE, 8, max_tokens=40)
    lab.step()
    bulk, person = lab.add(TrafficClass.BULK, 40), lab.add(TrafficClass.INTERACTIVE, 50)
    assert lab.rows(lab.step()) == {behind.request_id: 1, person.request_id: 50}
    lab.budget = replace(lab.budget, catch_up=0.2)
    assert lab.rows(lab.step(), TrafficClass.BULK) == {bulk.request_id: 40}
