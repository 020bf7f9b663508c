"""Everything that the scheduler knows: who waits, who runs, who holds which block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from orchestra.localengine.blocks import BlockPool
from orchestra.localengine.classes import ClassLimits
from orchestra.localengine.sequence import Sequence
from orchestra.policies.traffic import TrafficClass

__all__ = ["SchedulerState"]


class SchedulerState:
    """The sequences of both classes and their blocks.

    ``waiting`` is in order of arrival, so that a displaced sequence resumes before any that came later;
    ``running`` is in order of admission. Only running sequences hold blocks. Both are keyed by request id, so that
    adding, removing, admitting and displacing cost the same with 100,000 waiting. ``bulk_owed`` counts the tokens
    that bulk lacks of its minimum share.
    """

    def __init__(self, limits: ClassLimits, pool: BlockPool) -> None:
        if limits.num_blocks != pool.num_blocks:
            raise ValueError(f"limits for {limits.num_blocks} blocks do not fit a pool of {pool.num_blocks}")
        self.limits = limits
        self.pool = pool
        self.waiting: dict[TrafficClass, OrderedDict[int, Sequence]] = {c: OrderedDict() for c in TrafficClass}
        self.running: dict[TrafficClass, OrderedDict[int, Sequence]] = {c: OrderedDict() for c in TrafficClass}
        self.turns = 0
        self.bulk_owed = 0.0

    @property
    def has_work(self) -> bool:
        return any(self.waiting.values()) or any(self.running.values())

    def sequences(self) -> Iterator[Sequence]:
        """All of them, running ones first."""
        for traffic in TrafficClass:
            yield from self.running[traffic].values()
        for traffic in TrafficClass:
            yield from self.waiting[traffic].values()

    def capacity(self, traffic: TrafficClass) -> int:
        """The most tokens that one sequence of this class can ever have in the cache."""
        return self.limits.blocks(traffic) * self.pool.block_size

    def add(self, seq: Sequence) -> None:
        """Let ``seq`` wait, after those of its class that arrived before.

        Raises ValueError where it could never run: then it would wait for ever.
        """
        if not 0 < seq.max_length <= self.capacity(seq.traffic):
            raise ValueError(f"a sequence of up to {seq.max_length} tokens can never run as {seq.traffic}")
        self._enqueue(seq)

    def find(self, request_id: int) -> Sequence | None:
        """The sequence, running or waiting."""
        for traffic in TrafficClass:
            for queue in (self.running[traffic], self.waiting[traffic]):
                if request_id in queue:
                    return queue[request_id]
        return None

    def remove(self, request_id: int) -> Sequence | None:
        """Forget a sequence, finished or cancelled, and free its blocks. None where there is no such sequence."""
        seq = self.find(request_id)
        if seq is not None:
            self.running[seq.traffic].pop(request_id, None)
            self.waiting[seq.traffic].pop(request_id, None)
            self._free(seq)
        return seq

    def lendable(self, seq: Sequence, running: Mapping[int, Sequence]) -> tuple[int, ...]:
        """The blocks with which ``seq`` could start, since one of its kin in ``running`` has filled them.

        Whole blocks of the prompt only, so that nobody writes to them any more; and at least its last token is
        left for it to compute.
        """
        lent: list[int] = []
        for relative in seq.kin:
            if relative is not seq and relative.request_id in running:
                count = min(relative.num_computed, seq.num_prompt, len(seq) - 1) // self.pool.block_size
                if count > len(lent):
                    lent = relative.block_table[:count]
        return tuple(lent)

    def blocks_held(self, traffic: TrafficClass) -> int:
        """How many blocks the class holds; one that several of its sequences share counts once."""
        running = self.running[traffic].values()
        if any(seq.kin for seq in running):
            return len({block for seq in running for block in seq.block_table})
        return sum(len(seq.block_table) for seq in running)

    def admit(self, request_id: int, lent: Iterable[int] = ()) -> Sequence:
        """Move a sequence from waiting to running, with blocks for all its tokens.

        The first of them are ``lent``, full of its prompt and retained for it already.
        """
        seq = self._pop(self.waiting, request_id)
        shared = list(lent)
        missing = self.pool.blocks_for(self.reach(seq)) - len(shared)
        seq.block_table = shared + self.pool.allocate(missing)
        seq.num_computed = len(shared) * self.pool.block_size
        self.running[seq.traffic][request_id] = seq
        return seq

    def displace(self, request_id: int) -> Sequence:
        """Move a sequence from running back to waiting. It loses its blocks and keeps its tokens."""
        seq = self._pop(self.running, request_id)
        self._free(seq)
        seq.num_computed = 0
        seq.epoch += 1
        seq.displacements += 1
        self._enqueue(seq)
        return seq

    def reach(self, seq: Sequence) -> int:
        """The length for which a running ``seq`` needs blocks now: its own, or its greatest where it is fixed."""
        return seq.max_length if self.limits.is_fixed(seq) else len(seq)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken. For tests; costs O(everything)."""
        running = [seq for queue in self.running.values() for seq in queue.values()]
        self.pool.check([seq.block_table for seq in running])
        assert len(running) <= self.limits.max_num_seqs, "more sequences run than there are slots"
        for traffic in TrafficClass:
            mine = self.running[traffic]
            assert len(mine) <= self.limits.slots(traffic), f"{traffic} holds too many slots"
            held = {block for seq in mine.values() for block in seq.block_table}
            assert len(held) == self.blocks_held(traffic), f"the blocks of {traffic} are miscounted"
            assert len(held) <= self.limits.blocks(traffic), f"{traffic} holds too many blocks"
            arrivals = [seq.arrival for seq in self.waiting[traffic].values()]
            assert arrivals == sorted(arrivals), f"{traffic} does not wait in order of arrival"
            assert not mine.keys() & self.waiting[traffic].keys(), "a sequence runs and waits"
        for seq in running:
            assert len(seq.block_table) >= self.pool.blocks_for(seq.num_computed), (
                "computed tokens without a block"
            )
            assert seq.remaining_prefill >= 1, "nothing left to compute"
        for traffic in TrafficClass:
            for seq in self.waiting[traffic].values():
                assert not seq.block_table, "a waiting sequence holds blocks"
                assert not seq.num_computed, "a waiting sequence has computed tokens"

    def _enqueue(self, seq: Sequence) -> None:
        """Put ``seq`` among those who wait, by arrival."""
        queue = self.waiting[seq.traffic]
        newest = next(reversed(queue.values()), None)
        if newest is None or newest.arrival < seq.arrival:
            queue[seq.request_id] = seq
            return
        # It was displaced, or its kin went before it. Only such ones can have come before it, and they are few:
        # admission takes them first.
        earlier = []
        for other in queue.values():
            if other.arrival > seq.arrival:
                break
            earlier.append(other.request_id)
        queue[seq.request_id] = seq
        for moved in (seq.request_id, *reversed(earlier)):
            queue.move_to_end(moved, last=False)

    def _free(self, seq: Sequence) -> None:
        self.pool.release(seq.block_table)
        seq.block_table = []

    @staticmethod
    def _pop(queues: Mapping[TrafficClass, OrderedDict[int, Sequence]], request_id: int) -> Sequence:
        for queue in queues.values():
            if request_id in queue:
                return queue.pop(request_id)
        raise KeyError(request_id)
