"""Decide what one step computes. Pure: reads the state, changes nothing, knows neither torch nor time.

Iteration-level scheduling (Orca, OSDI 2022) with chunked prefill that rides along with decoding (Sarathi-Serve,
OSDI 2024), and two traffic classes inside. Interactive comes first in every loop: it decodes, prefills and is
admitted before bulk is looked at, and displaces bulk where slots or blocks are short. Bulk fills the rest of the
step for as long as the predicted time stays within a bound, so that an interactive request which is decoding, or
one that arrives meanwhile, never waits for a giant step.

Blocks: admission takes blocks for the whole current sequence, less those that the prefix cache has of it, and
leaves one spare block for each running sequence that can still grow, and as many as they are expected to grow to
(see `GrowthModel`), so that nothing is admitted only to be displaced by the next growth. Growth that finds no
block displaces bulk (if it is interactive), else the newest of its own class, which may be itself; the eldest thus
always goes on. What was displaced often becomes fixed (see `ClassLimits`): nobody recomputes for ever. Bulk evicts
no cached block of interactive requests as long as those have no more than their share.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from orchestra.localengine.cost import StepCost, StepLoad
from orchestra.localengine.growth import peak_blocks
from orchestra.localengine.sequence import Sequence
from orchestra.localengine.state import SchedulerState
from orchestra.policies.traffic import TrafficClass

__all__ = ["Hold", "PlannedRow", "StepBudget", "StepPlan", "plan_step"]

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK


class Hold(enum.StrEnum):
    """Why the first waiting request of a class was not admitted in a step."""

    SLOTS = "every slot is taken"
    BLOCKS = "too few free blocks"
    ROOM = "the step is full"
    TURN = "the other class goes first"


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Bounds of one step: tokens, and predicted seconds.

    ``tpot`` bounds a step while an interactive request is decoding; ``ttft`` bounds what bulk may add to any other
    step, since an interactive request may arrive while it runs.
    """

    tokens: int
    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """Compute ``count`` tokens of a sequence from position ``start`` on; draw a token where ``sampled``."""

    request_id: int
    epoch: int
    start: int
    count: int
    sampled: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. ``displaced`` go back to waiting first, then ``admitted`` start running, then ``rows`` run.

    ``matched`` are blocks of the prefix cache with which an admitted request begins. Without rows nothing runs,
    and ``held`` says why for each class that has somebody waiting.
    """

    rows: tuple[PlannedRow, ...]
    admitted: tuple[int, ...]
    displaced: tuple[int, ...]
    matched: Mapping[int, tuple[int, ...]]
    held: Mapping[TrafficClass, Hold]
    load: StepLoad
    seconds: float


def plan_step(state: SchedulerState, budget: StepBudget, cost: StepCost) -> StepPlan:
    """Plan the next step. The same arguments give the same plan, in O(running + admitted) work."""
    draft = _Draft(state, budget, cost)
    bound = budget.tpot if any(seq.is_decoding for seq in draft.running[INTERACTIVE].values()) else None
    if draft.bulk_turn:
        # What bulk is owed comes before anything else, but leaves each running interactive request its token.
        draft.serve(BULK, tokens=min(int(state.bulk_owed), budget.tokens - len(draft.running[INTERACTIVE])))
    draft.serve(INTERACTIVE, seconds=inf if bound is None else bound)
    draft.serve(BULK, seconds=budget.ttft if bound is None else bound)
    return draft.plan()


class _Draft:
    """A step being planned: a shadow of the state's books, in which every decision can still be undone."""

    def __init__(self, state: SchedulerState, budget: StepBudget, cost: StepCost) -> None:
        self.state, self.limits, self.pool, self.cost = state, state.limits, state.pool, cost
        self.tokens = budget.tokens
        self.load = StepLoad()
        self.rows: dict[int, PlannedRow] = {}
        self.running = {c: dict(state.running[c]) for c in TrafficClass}
        self.admitted: dict[int, Sequence] = {}
        self.displaced: dict[int, Sequence] = {}
        self.held: dict[TrafficClass, Hold] = {}
        # free blocks, in the order in which they are used up: blank ones, and cached ones by owner
        self.supply: dict[TrafficClass | None, int] = {
            None: self.pool.num_blank,
            BULK: self.pool.num_cached(BULK),
            INTERACTIVE: self.pool.num_cached(INTERACTIVE),
        }
        self.blocks = {c: self.pool.num_held(c) for c in TrafficClass}
        self.taken: dict[
            int, Counter[TrafficClass | None]
        ] = {}  # what this step takes of the supply, and for whom
        self.matched: dict[int, tuple[int, ...]] = {}  # and the cached blocks with which it lets a sequence begin
        self.shifts = {c: Counter[int]() for c in TrafficClass}  # what it changes of the blocks' reference counts
        self._queues = {c: iter(state.waiting[c].values()) for c in TrafficClass}
        self.heads = {c: next(self._queues[c], None) for c in TrafficClass}
        self.bulk_turn = state.bulk_owed >= 1 and bool(self.running[BULK] or self.heads[BULK] is not None)

    def plan(self) -> StepPlan:
        return StepPlan(
            rows=tuple(self.rows.values()),
            admitted=tuple(self.admitted),
            displaced=tuple(self.displaced),
            matched=self.matched,
            held=self.held,
            load=self.load,
            seconds=self.cost.predict(self.load),
        )

    # Tokens and time

    def serve(self, traffic: TrafficClass, *, tokens: float = inf, seconds: float = inf) -> None:
        """Give rows to a class: running decodes, then partial prefills together with new admissions.

        At most ``tokens`` tokens, and only while the step is predicted to take at most ``seconds``. That bound
        never stops an interactive request from decoding, nor the first row of a step.
        """
        stop = max(self.tokens - tokens, 0)  # leave that many of the step's tokens to others
        # Least recently run first: what does not fit now has its turn in the next step.
        order = sorted(self.running[traffic].values(), key=_turn)
        for seq in (seq for seq in order if seq.is_decoding):
            if self.tokens <= stop:
                break
            if seq.request_id in self.rows or seq.request_id in self.displaced:
                continue
            in_time = self.cost.predict(self.load.plus_decode(seq.num_computed)) <= seconds
            if not (in_time or self._must_go_on(traffic)):
                break
            if self._grow(seq):
                self._grant(seq, 1)
        idle = self.running[traffic].keys() - self.rows.keys()
        prefills = [seq for seq in order if seq.request_id in idle and not seq.is_decoding]
        spare = seconds - self.cost.predict(self.load)
        spare -= self.cost.per_kv_token * sum(map(self._computed, prefills))
        floor = self.pool.block_size if self._must_go_on(traffic) else 0
        room = int(min(self.tokens - stop, max(self.cost.prefill_room(spare), floor)))
        self._admit(traffic, room, prefills)
        for seq, count in self._water_fill(prefills, room):
            self._grant(seq, count)

    def _must_go_on(self, traffic: TrafficClass) -> bool:
        """Whether time is no object: interactive makes headway however much decodes, and every step does."""
        return traffic is INTERACTIVE or not self.rows

    def _grant(self, seq: Sequence, count: int) -> None:
        start = self._computed(seq)
        sampled = start + count == len(seq)
        self.rows[seq.request_id] = PlannedRow(seq.request_id, seq.epoch, start, count, sampled)
        self.tokens -= count
        self.load = self._with_row(self.load, seq, count)

    # Slots and blocks

    def _admit(self, traffic: TrafficClass, room: int, prefills: list[Sequence]) -> None:
        """Let those who wait join ``prefills``, first come first served, while ``room`` gives all a fair chunk."""
        chunks = sum(self._least_chunk(seq) for seq in prefills)
        spares = sum(self._can_grow(s) for c in _not_below(traffic) for s in self.running[c].values())
        while (seq := self.heads[traffic]) is not None:
            self._match(seq)
            chunks += self._least_chunk(seq)
            spares += self._can_grow(seq)
            fresh = self.pool.blocks_for(self.state.reach(seq)) - len(self.matched.get(seq.request_id, ()))
            hold = Hold.ROOM if room < (chunks if prefills else 1) else self._make_way(seq, fresh, spares)
            if hold is not None:
                self.held[traffic] = hold
                self._let_go(seq)
                return
            self._take(seq, fresh)
            self.running[traffic][seq.request_id] = self.admitted[seq.request_id] = seq
            prefills.append(seq)
            self.heads[traffic] = next(self._queues[traffic], None)
        self.held.pop(traffic, None)

    def _make_way(self, seq: Sequence, fresh: int, spares: int) -> Hold | None:
        """Have a slot free for ``seq``, with ``fresh`` blocks and some to spare; displace bulk if that helps.

        Returns what is in the way otherwise; then nothing was displaced.
        """
        traffic = seq.traffic
        if self._is_others_turn(traffic):
            return Hold.TURN
        if len(self.running[traffic]) >= self.limits.slots(traffic):
            return Hold.SLOTS
        blocks = fresh + spares
        if self.blocks[traffic] + blocks > self.limits.blocks(traffic) or not self._foresees_room(seq, fresh):
            return Hold.BLOCKS
        short_slots = 1 + sum(map(len, self.running.values())) - self.limits.max_num_seqs
        victims = self._victims(traffic, short_slots, blocks - self._available(traffic))
        if victims is None:
            return Hold.SLOTS if short_slots > 0 else Hold.BLOCKS
        for victim in victims:
            self._displace(victim)
        return None

    def _foresees_room(self, seq: Sequence, fresh: int) -> bool:
        """Whether its class can run to its expected end with ``seq`` among it. The first of a class always may."""
        traffic = seq.traffic
        if not self.running[traffic]:
            return True
        growth = self._growth([*self.running[traffic].values(), seq])
        room = self._available(traffic) - fresh
        if traffic is BULK:
            growth += self._growth(self.running[INTERACTIVE].values())
        else:  # bulk goes when it has to, and not before
            room += self._freed(
                [victim for victim in self.running[BULK].values() if not self.limits.is_fixed(victim)]
            )
        return growth <= room

    def _growth(self, seqs: Iterable[Sequence]) -> int:
        """How many blocks these will need at most beyond those that they need now, if they end as expected."""
        now, growing = 0, []
        for seq in seqs:
            reach, left = self.state.reach(seq), self.state.growth.remaining(seq)
            now += self.pool.blocks_for(reach)
            growing.append((reach if reach == len(seq) else max(reach - left, 0), left))
        return max(peak_blocks(growing, self.pool.block_size) - now, 0) if growing else 0

    def _is_others_turn(self, traffic: TrafficClass) -> bool:
        if any(seq.traffic is traffic for seq in self.displaced.values()):
            return True  # the displaced come first, in the next step
        if traffic is BULK:
            return self.held.get(INTERACTIVE) in (Hold.SLOTS, Hold.BLOCKS)
        return self.bulk_turn and not self.running[BULK]  # bulk is owed and found no place: let one fall free

    def _grow(self, seq: Sequence) -> bool:
        """Make sure that ``seq`` has a block for its newest token. False where it had to go itself."""
        held = len(seq.block_table) + self._taken(seq)
        if held >= self.pool.blocks_for(len(seq)):
            return True
        traffic = seq.traffic
        while self._available(traffic) < 1 or self.blocks[traffic] >= self.limits.blocks(traffic):
            lower = self._victims(traffic, 0, 1) if self._available(traffic) < 1 else None
            peers = (peer for peer in self.running[traffic].values() if not self.limits.is_fixed(peer))
            for victim in lower or [max(peers, key=_arrival)]:
                self._displace(victim)
            if seq.request_id in self.displaced:
                return False
        self._take(seq, 1)
        return True

    def _victims(self, traffic: TrafficClass, slots: int, blocks: int) -> list[Sequence] | None:
        """Rows of a strictly lower class whose slots and blocks suffice, cheapest to resume first, or None.

        What bulk is computing in this step as its due, and its eldest while it has a minimum share, stay.
        """
        if slots <= 0 and blocks <= 0:
            return []
        if traffic is BULK:
            return None
        bulk = self.running[BULK].values()
        eldest = min(bulk, key=_arrival, default=None) if self.limits.bulk_min_share else None
        rows = [s for s in bulk if not (self.limits.is_fixed(s) or s is eldest or s.request_id in self.rows)]
        victims: list[Sequence] = []
        for seq in sorted(rows, key=_cost_to_resume):
            victims.append(seq)
            if len(victims) >= slots and self._freed(victims) >= blocks:
                break
        else:
            return None
        for seq in reversed(victims):  # spare, dearest first, whom the later ones made superfluous
            others = [victim for victim in victims if victim is not seq]
            if len(others) >= slots and self._freed(others) >= blocks:
                victims = others
        return victims

    def _displace(self, seq: Sequence) -> None:
        """Take a sequence out of the step, with its row, its tokens, and its blocks."""
        if row := self.rows.pop(seq.request_id, None):
            self.tokens += row.count
            self.load -= self._with_row(StepLoad(), seq, row.count)
        self._let_go(seq)
        del self.running[seq.traffic][seq.request_id]
        if not self.admitted.pop(seq.request_id, None):
            self.displaced[seq.request_id] = seq

    def _available(self, traffic: TrafficClass) -> int:
        """How many blocks the class may take: bulk leaves interactive's cached ones alone up to its share."""
        theirs = self.supply[INTERACTIVE]
        if traffic is BULK:
            theirs = max(0, min(theirs, theirs + self.blocks[INTERACTIVE] - self.limits.interactive_blocks))
        return self.supply[None] + self.supply[BULK] + theirs

    def _match(self, seq: Sequence) -> None:
        """Let ``seq`` hold what the prefix cache has of it."""
        if not (matched := tuple(self.state.match(seq))):
            return
        mine = self.shifts[seq.traffic]
        for block in matched:
            if not self._references(block):
                self.supply[self.pool.owner(block)] -= 1
            self.blocks[seq.traffic] += not self.pool.references(block, seq.traffic) + mine[block]
            mine[block] += 1
        self.matched[seq.request_id] = matched

    def _take(self, seq: Sequence, blocks: int) -> None:
        """Give ``seq`` so many more blocks, which are there."""
        taken = self.taken.setdefault(seq.request_id, Counter())
        self.blocks[seq.traffic] += blocks
        for source, there in self.supply.items():
            count = min(blocks, there)
            self.supply[source] -= count
            taken[source] += count
            blocks -= count

    def _let_go(self, seq: Sequence) -> None:
        """Undo what ``seq`` took and matched in this step; it loses what it held before."""
        taken = self.taken.pop(seq.request_id, Counter[TrafficClass | None]())
        self.blocks[seq.traffic] -= taken.total()
        for source, count in taken.items():
            self.supply[source] += count
        mine = self.shifts[seq.traffic]
        for block in self.matched.pop(seq.request_id, seq.block_table):
            mine[block] -= 1
            self.blocks[seq.traffic] -= not self.pool.references(block, seq.traffic) + mine[block]
            if not self._references(block):
                self.supply[self.pool.owner(block)] += 1

    def _can_grow(self, seq: Sequence) -> bool:
        return self.pool.blocks_for(self.state.reach(seq)) < self.pool.blocks_for(seq.max_length)

    def _freed(self, seqs: Iterable[Sequence]) -> int:
        """How many blocks fall free if all of these go: those that only they hold."""
        freed = 0
        held: Counter[int] = Counter()
        for seq in seqs:
            freed += self._taken(seq)
            held.update(self.matched.get(seq.request_id, seq.block_table))
        return freed + sum(self._references(block) == count for block, count in held.items())

    def _taken(self, seq: Sequence) -> int:
        taken = self.taken.get(seq.request_id)
        return taken.total() if taken else 0

    def _references(self, block: int) -> int:
        return self.pool.references(block) + sum(shifts[block] for shifts in self.shifts.values())

    # Tokens of a sequence, with what is matched in this step

    def _computed(self, seq: Sequence) -> int:
        return max(seq.num_computed, len(self.matched.get(seq.request_id, ())) * self.pool.block_size)

    def _remaining(self, seq: Sequence) -> int:
        return len(seq) - self._computed(seq)

    def _least_chunk(self, seq: Sequence) -> int:
        """The smallest chunk worth a slot: interactive starts at once, bulk computes whole blocks."""
        return min(self._remaining(seq), 1 if seq.traffic is INTERACTIVE else self.pool.block_size)

    def _with_row(self, load: StepLoad, seq: Sequence, count: int) -> StepLoad:
        if seq.is_decoding:
            return load.plus_decode(seq.num_computed)
        return load.plus_prefill(self._computed(seq), count)

    def _water_fill(self, prefills: Iterable[Sequence], room: int) -> list[tuple[Sequence, int]]:
        """Share ``room`` tokens out equally; what a short prompt does not need goes to the longer ones."""
        chosen = sorted(prefills, key=_turn)[: max(room, 0)]  # with fewer tokens than prompts, they take turns
        chosen.sort(key=self._remaining)
        shares: list[tuple[Sequence, int]] = []
        for left, seq in zip(range(len(chosen), 0, -1), chosen, strict=True):
            count = min(self._remaining(seq), -(-room // left))
            shares.append((seq, count))
            room -= count
        return shares


def _not_below(traffic: TrafficClass) -> tuple[TrafficClass, ...]:
    return (INTERACTIVE,) if traffic is INTERACTIVE else (INTERACTIVE, BULK)


def _turn(seq: Sequence) -> tuple[int, int]:
    return seq.last_turn, seq.arrival


def _arrival(seq: Sequence) -> int:
    return seq.arrival


def _cost_to_resume(seq: Sequence) -> tuple[int, int]:
    return seq.num_computed, -seq.arrival
