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

from collections.abc import Callable, Iterable
from math import inf

from orchestra.localengine.scheduling.cost import StepCost
from orchestra.localengine.scheduling.draft import Draft
from orchestra.localengine.scheduling.growth import peak_blocks
from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.localengine.scheduling.state import SchedulerState
from orchestra.localengine.scheduling.step_plan import Hold, StepBudget, StepPlan
from orchestra.policies.traffic import TrafficClass

__all__ = ["plan_step"]

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK


def plan_step(state: SchedulerState, budget: StepBudget, cost: StepCost) -> StepPlan:
    """Plan the next step. The same arguments give the same plan, in O(running + admitted) work."""
    draft = _Draft(state, budget, cost)
    is_decoding = any(seq.is_decoding for seq in draft.running[INTERACTIVE].values())
    if draft.bulk_turn:
        # What bulk is owed comes before anything else, but leaves each running interactive request its token.
        draft.serve(BULK, tokens=min(int(state.bulk_owed), budget.tokens - len(draft.running[INTERACTIVE])))
    draft.serve(INTERACTIVE, seconds=budget.tpot if is_decoding else inf)
    draft.serve(BULK, seconds=min(budget.tpot, budget.catch_up) if is_decoding else budget.ttft)
    return draft.plan()


class _Draft(Draft):
    """A step of two classes, interactive first."""

    def __init__(self, state: SchedulerState, budget: StepBudget, cost: StepCost) -> None:
        super().__init__(state, budget, cost)
        self.bulk_turn = state.bulk_owed >= 1 and bool(self.running[BULK] or self.heads[BULK] is not None)

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
                self.grant(seq, 1)
        idle = self.running[traffic].keys() - self.rows.keys()
        prefills = [seq for seq in order if seq.request_id in idle and not seq.is_decoding]
        floor = self.pool.block_size if self._must_go_on(traffic) else 0

        def room() -> int:
            """Tokens that the prompts may share, beside what they have in the cache and must read."""
            spare = seconds - self.cost.predict(self.load)
            spare -= self.cost.per_kv_token * sum(map(self.computed, prefills))
            return int(min(self.tokens - stop, max(self.cost.prefill_room(spare), floor)))

        self._admit(traffic, room, prefills)
        for seq, count in self._water_fill(prefills, room()):
            self.grant(seq, count)

    def _must_go_on(self, traffic: TrafficClass) -> bool:
        """Whether time is no object: interactive makes headway however much decodes, and every step does."""
        return traffic is INTERACTIVE or not self.rows

    # Slots and blocks

    def _admit(self, traffic: TrafficClass, room: Callable[[], int], prefills: list[Sequence]) -> None:
        """Let those who wait join ``prefills``, first come first served, while ``room`` gives all a fair chunk."""
        chunks = sum(self._least_chunk(seq) for seq in prefills)
        spares = sum(self.can_grow(s) for c in _not_below(traffic) for s in self.running[c].values())
        while (seq := self.heads[traffic]) is not None:
            fresh = self.match(seq)
            prefills.append(seq)
            chunks += self._least_chunk(seq)
            spares += self.can_grow(seq)
            least = chunks if len(prefills) > 1 else 1
            hold = Hold.ROOM if room() < least else self._make_way(seq, fresh, spares)
            if hold is not None:
                self.held[traffic] = hold
                self.let_go(prefills.pop())
                return
            self.admit(seq, fresh)
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
        victims = self._victims(traffic, short_slots, blocks - self.available(traffic))
        if victims is None:
            return Hold.SLOTS if short_slots > 0 else Hold.BLOCKS
        for victim in victims:
            self.displace(victim)
        return None

    def _foresees_room(self, seq: Sequence, fresh: int) -> bool:
        """Whether its class can run to its expected end with ``seq`` among it. The first of a class always may."""
        traffic = seq.traffic
        if not self.running[traffic]:
            return True
        growth = self._growth([*self.running[traffic].values(), seq])
        if traffic is BULK:
            growth += self._growth(self.running[INTERACTIVE].values())
            room = self.available(BULK)
        else:  # bulk goes when it has to, and not before; what is fixed stays
            fixed = (other for other in self.running[BULK].values() if self.limits.is_fixed(other))
            room = self.limits.num_blocks - self.blocks[INTERACTIVE] - sum(map(self.holds, fixed))
        return growth <= room - fresh

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
        if self.holds(seq) >= self.pool.blocks_for(len(seq)):
            return True
        traffic = seq.traffic
        while self.available(traffic) < 1 or self.blocks[traffic] >= self.limits.blocks(traffic):
            lower = self._victims(traffic, 0, 1) if self.available(traffic) < 1 else None
            peers = (peer for peer in self.running[traffic].values() if not self.limits.is_fixed(peer))
            for victim in lower or [max(peers, key=_arrival)]:
                self.displace(victim)
            if seq.request_id in self.displaced:
                return False
        self.take(seq, 1)
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

        def suffice(victims: list[Sequence]) -> bool:
            if len(victims) < slots or sum(map(self.holds, victims)) < blocks:
                return False
            return self.freed(victims) >= blocks  # which takes a look at each block

        victims: list[Sequence] = []
        for seq in sorted(rows, key=_cost_to_resume):
            victims.append(seq)
            if suffice(victims):
                break
        else:
            return None
        for seq in reversed(victims):  # spare, dearest first, whom the later ones made superfluous
            others = [victim for victim in victims if victim is not seq]
            if suffice(others):
                victims = others
        return victims

    def _least_chunk(self, seq: Sequence) -> int:
        """The smallest chunk worth a slot: interactive starts at once, bulk computes whole blocks."""
        return min(self.remaining(seq), 1 if seq.traffic is INTERACTIVE else self.pool.block_size)

    def _water_fill(self, prefills: Iterable[Sequence], room: int) -> list[tuple[Sequence, int]]:
        """Share ``room`` tokens out equally; what a short prompt does not need goes to the longer ones."""
        chosen = sorted(prefills, key=_turn)[: max(room, 0)]  # with fewer tokens than prompts, they take turns
        chosen.sort(key=self.remaining)
        shares: list[tuple[Sequence, int]] = []
        for left, seq in zip(range(len(chosen), 0, -1), chosen, strict=True):
            count = min(self.remaining(seq), -(-room // left))
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
