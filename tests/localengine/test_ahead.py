"""The step planned ahead: what the scheduler would decide once it knew, or nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import replace
from typing import Any

import pytest
from engine_lab import Lab

from orchestra.localengine.scheduling.ahead import can_be_late, plan_ahead
from orchestra.localengine.scheduling.draft import Draft
from orchestra.localengine.scheduling.step_plan import Hold, StepPlan
from orchestra.localengine.step import RowInput, RowOutput
from orchestra.policies.traffic import TrafficClass

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK


class AheadLab(Lab):
    """Plans ahead in every step, and holds that against what the scheduler says one step later.

    That is the same, unless somebody came or went meanwhile.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ahead: StepPlan | None = None
        self.agreed = 0
        self._known: set[int] = set()
        self._current: StepPlan | None = None
        run = self.runner.run

        def running(rows: Ids[RowInput], abandon: Callable[[], bool] | None = None) -> list[RowOutput]:
            assert self._current is not None
            self.ahead = plan_ahead(self.state, self._current, self.budget, self.cost)
            self._known = self._ids()
            outputs: list[RowOutput] = run(rows, abandon)
            return outputs

        self.runner.run = running

    def _ids(self) -> set[int]:
        return {seq.request_id for seq in self.state.sequences()}

    def _plan(self) -> tuple[StepPlan, Draft]:
        plan, draft = super()._plan()
        if self.ahead is not None and self._known == self._ids():
            assert sorted(map(str, self.ahead.rows)) == sorted(map(str, plan.rows))
            assert (plan.admitted, plan.displaced) == ((), ())
            assert self.ahead.load == plan.load
            assert self.ahead.seconds == pytest.approx(plan.seconds)
            self.agreed += 1
        self._current = plan
        return plan, draft


@pytest.mark.parametrize("seed", range(12))
def test_it_is_what_the_scheduler_decides_once_it_knows(seed: int) -> None:
    rng = random.Random(seed)
    scheduler = rng.choice(("classes", "fcfs", "priority", "static"))
    lab = AheadLab(
        blocks=rng.choice((12, 24, 64)),
        slots=rng.choice((2, 5, 8)),
        tokens=rng.choice((8, 64)),
        interactive_slots=rng.choice((0, 1)) if scheduler == "classes" else 0,
        stall=100_000,
        scheduler=scheduler,
    )
    for _ in range(40):
        lab.add(rng.choice((INTERACTIVE, BULK)), rng.randint(1, 12), rng.randint(5, 30))
        for _ in range(rng.choice((0, 3, 9, 30))):
            if lab.state.has_work:
                lab.step()
    lab.run()
    assert lab.agreed > 10


def decoding(**changes: Any) -> Lab:
    """Two bulk requests, the second of which decodes with ``changes`` to its sampling; the next plan is ready."""
    lab = Lab(interactive_slots=0, slots=2)
    lab.add(BULK, 4, 9)
    other = lab.add(BULK, 4, 9)
    other.sampling = replace(other.sampling, **changes)
    lab.step()
    return lab


def ahead(lab: Lab) -> StepPlan | None:
    plan, _ = lab._plan()
    return plan_ahead(lab.state, plan, lab.budget, lab.cost)


def test_everybody_goes_on_by_one_token() -> None:
    lab = decoding()
    plan = ahead(lab)
    assert plan is not None
    assert [(row.request_id, row.start, row.count, row.sampled) for row in plan.rows] == [
        (0, 5, 1, True),
        (1, 5, 1, True),
    ]


@pytest.mark.parametrize(
    "changes", [{"frequency_penalty": 0.5}, {"repetition_penalty": 1.2}, {"min_tokens": 5}], ids=str
)
def test_a_draw_that_depends_on_the_token_before_is_not_planned_without_it(changes: dict[str, Any]) -> None:
    assert ahead(decoding(**changes)) is None


def test_nor_is_one_whose_output_is_held_to_a_form_or_at_its_end() -> None:
    lab = decoding()
    other = lab.state.get(1)
    other.constraint = object()  # type: ignore[assignment]
    assert ahead(lab) is None
    other.constraint = None
    other.max_tokens = other.num_output + 1
    assert ahead(lab) is None


def test_who_could_be_admitted_is_not_passed_over() -> None:
    lab = decoding()
    lab.add(BULK, 4, 4)
    assert ahead(lab) is not None, "both slots are taken until somebody ends"
    lab = Lab(interactive_slots=0, slots=4, tokens=8)
    lab.add(BULK, 20, 4)
    lab.step()
    assert ahead(lab) is None, "a prompt is not computed to its end"


def test_nor_is_anybody_interactive_who_might_displace_bulk() -> None:
    lab = decoding()
    plan, _ = lab._plan()
    lab.add(INTERACTIVE, 4, 4)
    assert plan_ahead(lab.state, replace(plan, held={INTERACTIVE: Hold.SLOTS}), lab.budget, lab.cost) is None


@pytest.mark.parametrize(("traffic", "target"), [(BULK, "ttft"), (INTERACTIVE, "tpot")])
def test_a_step_with_bulk_in_it_keeps_to_the_target(traffic: TrafficClass, target: str) -> None:
    lab = Lab(interactive_slots=0, slots=2)
    lab.add(BULK, 4, 9)
    lab.add(traffic, 4, 9)
    lab.step()
    plan = ahead(lab)
    assert plan is not None
    lab.budget = replace(lab.budget, **{target: plan.seconds * 1.01})
    assert ahead(lab) is not None
    lab.budget = replace(lab.budget, **{target: plan.seconds * 0.99})
    assert plan_ahead(lab.state, lab.plans[-1], lab.budget, lab.cost) is None


def test_a_block_that_is_missing_is_left_to_the_scheduler() -> None:
    lab = Lab(interactive_slots=0, slots=2, blocks=2, block_size=4)
    lab.add(BULK, 3, 5)
    lab.step()
    assert ahead(lab) is not None, "the second block is free"
    lab = Lab(interactive_slots=0, slots=2, blocks=4, block_size=4)
    lab.add(BULK, 6, 2)
    lab.add(BULK, 7, 9)
    lab.step()
    assert ahead(lab) is None, "both blocks of each are taken, and one needs a third"


def test_who_is_gone_or_was_displaced_is_decided_anew() -> None:
    lab = decoding()
    plan, _ = lab._plan()
    lab.state.displace(1)
    assert plan_ahead(lab.state, plan, lab.budget, lab.cost) is None
    lab.state.remove(1)
    assert plan_ahead(lab.state, plan, lab.budget, lab.cost) is None


def test_a_token_can_be_looked_at_late_unless_it_ends_or_begins_an_output() -> None:
    seq = decoding().state.get(1)
    seq.end_ids = frozenset({1})
    assert not can_be_late(seq, 50), "the first token"
    seq.token_ids.append(50)
    assert can_be_late(seq, 50)
    assert not can_be_late(seq, 1)
    seq.max_tokens = seq.num_output
    assert not can_be_late(seq, 50)
