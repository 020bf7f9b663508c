"""The books of a step that is being planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from orchestra.localengine.scheduling.cost import StepCost, StepLoad
from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.localengine.scheduling.state import SchedulerState
from orchestra.localengine.scheduling.step_plan import Hold, PlannedRow, StepBudget, StepPlan
from orchestra.policies.traffic import TrafficClass

__all__ = ["Draft"]

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK


class Draft:
    """A step being planned: a shadow of the state's books, in which every decision can still be undone.

    It knows what a decision means for tokens, slots and blocks. Who is served, admitted or displaced is for a
    scheduler to decide, which builds on it. ``heads`` are the first of each class that still wait.
    """

    def __init__(self, state: SchedulerState, budget: StepBudget, cost: StepCost) -> None:
        self.state, self.limits, self.pool, self.cost = state, state.limits, state.pool, cost
        self.tokens = budget.tokens
        self.load = StepLoad()
        self.rows: dict[int, PlannedRow] = {}
        self.running = {c: dict(state.running[c]) for c in TrafficClass}
        self.admitted: dict[int, Sequence] = {}
        self.displaced: dict[int, Sequence] = {}
        self.held: dict[TrafficClass, Hold] = {}
        self.free = self.pool.num_free
        self.kept = self.pool.num_cached(INTERACTIVE)  # of the free ones, before any is taken: they are taken last
        self.blocks = {c: self.pool.num_held(c) for c in TrafficClass}
        self._taken: Counter[int] = Counter()  # blank or evicted blocks that this step gives to a sequence
        self._matched: dict[int, tuple[int, ...]] = {}  # and the cached ones with which it lets a sequence begin
        self._shifts = {c: Counter[int]() for c in TrafficClass}  # what it changes of the blocks' reference counts
        self._queues = {c: iter(state.waiting[c].values()) for c in TrafficClass}
        self.heads = {c: next(self._queues[c], None) for c in TrafficClass}

    def plan(self) -> StepPlan:
        return StepPlan(
            rows=tuple(self.rows.values()),
            admitted=tuple(self.admitted),
            displaced=tuple(self.displaced),
            matched=self._matched,
            held=self.held,
            load=self.load,
            seconds=self.cost.predict(self.load),
        )

    # Rows

    def grant(self, seq: Sequence, count: int) -> None:
        """Give a running sequence a row of its next ``count`` tokens, for which it has blocks."""
        start = self.computed(seq)
        sampled = start + count == len(seq)
        self.rows[seq.request_id] = PlannedRow(seq.request_id, seq.epoch, start, count, sampled)
        self.tokens -= count
        self.load = self._with_row(self.load, seq, count)

    def computed(self, seq: Sequence) -> int:
        """Tokens that are computed already, those that it matched in this step among them."""
        return max(seq.num_computed, len(self._matched.get(seq.request_id, ())) * self.pool.block_size)

    def remaining(self, seq: Sequence) -> int:
        """Tokens that are still to compute."""
        return len(seq) - self.computed(seq)

    # Slots and blocks

    def admit(self, seq: Sequence, fresh: int) -> None:
        """Let the head of its class start running, with so many blocks beside those that it matched."""
        self.take(seq, fresh)
        self.running[seq.traffic][seq.request_id] = self.admitted[seq.request_id] = seq
        self.heads[seq.traffic] = next(self._queues[seq.traffic], None)

    def displace(self, seq: Sequence) -> None:
        """Take a sequence out of the step, with its row, its tokens, and its blocks."""
        if row := self.rows.pop(seq.request_id, None):
            self.tokens += row.count
            self.load -= self._with_row(StepLoad(), seq, row.count)
        self.let_go(seq)
        del self.running[seq.traffic][seq.request_id]
        if not self.admitted.pop(seq.request_id, None):
            self.displaced[seq.request_id] = seq

    def available(self, traffic: TrafficClass) -> int:
        """How many blocks the class may take: bulk leaves interactive's cached ones alone up to its share.

        None where this is 0 or below: what was matched may have been counted on before.
        """
        if traffic is INTERACTIVE:
            return self.free
        share = max(0, self.limits.interactive_blocks - self.blocks[INTERACTIVE])
        return self.free - min(self.kept, share)

    def match(self, seq: Sequence) -> int:
        """Let ``seq`` hold what the prefix cache has of it; return how many blocks it needs beside that."""
        if matched := tuple(self.state.match(seq)):
            self._matched[seq.request_id] = matched
        mine = self._shifts[seq.traffic]
        for block in matched:
            if not self._references(block):
                self.free -= 1
                self.kept -= self.pool.owner(block) is INTERACTIVE
            self.blocks[seq.traffic] += not self.pool.references(block, seq.traffic) + mine[block]
            mine[block] += 1
        return self.pool.blocks_for(self.state.reach(seq)) - len(matched)

    def take(self, seq: Sequence, blocks: int) -> None:
        """Give ``seq`` so many more blocks, which are there."""
        self._taken[seq.request_id] += blocks
        self.blocks[seq.traffic] += blocks
        self.free -= blocks

    def let_go(self, seq: Sequence) -> None:
        """Undo what ``seq`` took and matched in this step; it loses what it held before."""
        taken = self._taken.pop(seq.request_id, 0)
        self.blocks[seq.traffic] -= taken
        self.free += taken
        mine = self._shifts[seq.traffic]
        for block in self._matched.pop(seq.request_id, seq.block_table):
            mine[block] -= 1
            self.blocks[seq.traffic] -= not self.pool.references(block, seq.traffic) + mine[block]
            if not self._references(block):
                self.free += 1
                self.kept += self.pool.owner(block) is INTERACTIVE

    def holds(self, seq: Sequence) -> int:
        """How many blocks a sequence that runs, or that joins in this step, has by now."""
        return len(self._matched.get(seq.request_id, seq.block_table)) + self._taken[seq.request_id]

    def can_grow(self, seq: Sequence) -> bool:
        """Whether it may come to need more blocks than admission gives it."""
        return self.pool.blocks_for(self.state.reach(seq)) < self.pool.blocks_for(seq.max_length)

    def freed(self, seqs: Iterable[Sequence]) -> int:
        """How many blocks fall free if all of these go: those that only they hold."""
        freed = 0
        held: Counter[int] = Counter()
        for seq in seqs:
            freed += self._taken[seq.request_id]
            held.update(self._matched.get(seq.request_id, seq.block_table))
        return freed + sum(self._references(block) == count for block, count in held.items())

    def _references(self, block: int) -> int:
        return self.pool.references(block) + sum(shifts[block] for shifts in self._shifts.values())

    def _with_row(self, load: StepLoad, seq: Sequence, count: int) -> StepLoad:
        if seq.is_decoding:
            return load.plus_decode(seq.num_computed)
        return load.plus_prefill(self.computed(seq), count)
