"""The schedulers by name: ours for two classes, and three others to compare it with.

What others do is done here with the same books and the same runner, so that a difference in what is measured is
one of scheduling alone. All three know one queue, take each request's class for what it tells about the order and
nothing else, and bound a step by its tokens, not by its time.

- ``priority``: continuous batching (Orca) with chunked prefill (Sarathi-Serve), where those who wait are ordered
  by class, then arrival, as vLLM's ``priority`` policy does. Nobody who runs goes for somebody who waits.
- ``fcfs``: the same, with all in order of arrival: vLLM's default.
- ``static``: one batch is taken when nothing runs, and computed to its end before the next. Nothing is padded, and
  a slot whose request has ended stays empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain

from orchestra.localengine.config import SchedulerName
from orchestra.localengine.scheduling.cost import StepCost
from orchestra.localengine.scheduling.draft import Draft
from orchestra.localengine.scheduling.plan import plan_step
from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.localengine.scheduling.state import SchedulerState
from orchestra.localengine.scheduling.step_plan import Hold, StepBudget, StepPlan
from orchestra.policies.traffic import TrafficClass

__all__ = ["SCHEDULERS", "plan_fcfs", "plan_priority", "plan_static"]

Order = Callable[[Sequence], tuple[int, int]]


def plan_priority(state: SchedulerState, budget: StepBudget, cost: StepCost) -> StepPlan:
    """Plan the next step of one queue by class, then arrival."""
    return _Queue(state, budget, cost, _by_class).fill()


def plan_fcfs(state: SchedulerState, budget: StepBudget, cost: StepCost) -> StepPlan:
    """Plan the next step of one queue by arrival."""
    return _Queue(state, budget, cost, _by_arrival).fill()


def plan_static(state: SchedulerState, budget: StepBudget, cost: StepCost) -> StepPlan:
    """Plan the next step of the batch at hand; take the next batch, by arrival, where there is none."""
    return _Batch(state, budget, cost, _by_arrival).fill()


SCHEDULERS: Mapping[SchedulerName, Callable[[SchedulerState, StepBudget, StepCost], StepPlan]] = {
    "classes": plan_step,
    "priority": plan_priority,
    "fcfs": plan_fcfs,
    "static": plan_static,
}
"""All have the signature of `plan_step`, and are pure."""


class _Queue(Draft):
    """A step of all requests in one order.

    Who decodes comes first, then prompts: each takes what is left of the step's tokens. Growth that finds no block
    displaces the last in order, which may be who grows; so the first always goes on.
    """

    def __init__(self, state: SchedulerState, budget: StepBudget, cost: StepCost, order: Order) -> None:
        super().__init__(state, budget, cost)
        self._order = order

    def fill(self) -> StepPlan:
        running = sorted(self._everyone(), key=self._order)
        for seq in running:
            if seq.is_decoding and seq.request_id not in self.displaced and self.tokens and self._grow(seq):
                self.grant(seq, 1)
        for seq in running:
            if not seq.is_decoding and seq.request_id not in self.displaced:
                self._prefill(seq)
        self._admit()
        return self.plan()

    def _prefill(self, seq: Sequence) -> None:
        if self.tokens:
            self.grant(seq, min(self.remaining(seq), self.tokens))

    def _grow(self, seq: Sequence) -> bool:
        """Make sure that ``seq`` has a block for its newest token. False where it had to go itself."""
        if self.holds(seq) >= self.pool.blocks_for(len(seq)):
            return True
        while self.free < 1:
            self.displace(max((s for s in self._everyone() if not self.limits.is_fixed(s)), key=self._order))
            if seq.request_id in self.displaced:
                return False
        self.take(seq, 1)
        return True

    def _admit(self) -> None:
        """Let those who wait join in their order, until one finds no room."""
        while waiting := [seq for seq in self.heads.values() if seq is not None]:
            seq = min(waiting, key=self._order)
            fresh = self.match(seq)
            if hold := self._hold(seq, fresh):
                self.let_go(seq)
                self.held = {head.traffic: hold if head is seq else Hold.TURN for head in waiting}
                return
            self.admit(seq, fresh)
            self._prefill(seq)

    def _hold(self, seq: Sequence, fresh: int) -> Hold | None:
        """What is in the way of ``seq``, which needs so many blocks, if anything is."""
        if self.displaced:
            return Hold.TURN  # theirs, in the next step
        if self._num_running >= self.limits.max_num_seqs:
            return Hold.SLOTS
        if not self.tokens:
            return Hold.ROOM
        return Hold.BLOCKS if fresh > self.free else None

    def _everyone(self) -> list[Sequence]:
        return list(chain.from_iterable(mine.values() for mine in self.running.values()))

    @property
    def _num_running(self) -> int:
        return sum(map(len, self.running.values()))


class _Batch(_Queue):
    """A step of a batch that nobody joins, and that has room for all that its requests can become."""

    def _hold(self, seq: Sequence, fresh: int) -> Hold | None:
        if any(self.state.running.values()):
            return Hold.BATCH
        if self._num_running >= self.limits.max_num_seqs:
            return Hold.SLOTS
        most = sum(self.pool.blocks_for(one.max_length) for one in (*self._everyone(), seq))
        return Hold.BLOCKS if most > self.limits.num_blocks else None


def _by_arrival(seq: Sequence) -> tuple[int, int]:
    return 0, seq.arrival


def _by_class(seq: Sequence) -> tuple[int, int]:
    return int(seq.traffic is TrafficClass.BULK), seq.arrival
