"""Everything that the scheduler knows: who waits, who runs, who holds which block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as AbstractSequence

from orchestra.localengine.scheduling.blocks import BlockPool
from orchestra.localengine.scheduling.classes import ClassLimits
from orchestra.localengine.scheduling.growth import GrowthModel
from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.policies.traffic import TrafficClass

__all__ = ["SchedulerState"]


class SchedulerState:
    """The sequences of both classes and their blocks.

    ``waiting`` is in order of arrival, so that a displaced sequence resumes before any that came later;
    ``running`` is in order of admission. Only running sequences hold blocks. Both are keyed by request id, so that
    adding, removing, admitting and displacing cost the same with 100,000 waiting. ``bulk_owed`` counts the tokens
    that bulk lacks of its minimum share; ``growth`` learns how long outputs become.
    """

    def __init__(self, limits: ClassLimits, pool: BlockPool) -> None:
        if limits.num_blocks != pool.num_blocks:
            raise ValueError(f"limits for {limits.num_blocks} blocks do not fit a pool of {pool.num_blocks}")
        self.limits = self._configured = limits
        self.pool = pool
        self.waiting: dict[TrafficClass, OrderedDict[int, Sequence]] = {c: OrderedDict() for c in TrafficClass}
        self.running: dict[TrafficClass, OrderedDict[int, Sequence]] = {c: OrderedDict() for c in TrafficClass}
        self.growth = GrowthModel()
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

    def fit(self, seq: Sequence) -> bool:
        """Whether ``seq`` can run under these limits; where its length was left open, with less output."""
        room = self.capacity(seq.traffic)
        if seq.sampling.max_tokens is None and len(seq) < room:
            seq.max_tokens = min(seq.max_tokens, room - seq.num_prompt)
        return seq.max_length <= room

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

    def get(self, request_id: int) -> Sequence:
        """The sequence, which is known to be there."""
        seq = self.find(request_id)
        assert seq is not None, f"there is no sequence {request_id}"
        return seq

    def remove(self, request_id: int) -> Sequence | None:
        """Forget a sequence, finished or cancelled, and free its blocks. None where there is no such sequence."""
        seq = self.find(request_id)
        if seq is not None:
            self.running[seq.traffic].pop(request_id, None)
            self.waiting[seq.traffic].pop(request_id, None)
            self._free(seq)
        return seq

    def match(self, seq: Sequence) -> list[int]:
        """The blocks of the prefix cache with which ``seq`` could start.

        At least its newest token is left for it to compute, and where the prompt's own probabilities are asked for
        the whole prompt is.
        """
        if seq.sampling.prompt_logprobs is not None and len(seq.prompt_scores) < seq.num_prompt - 1:
            return []
        return self.pool.match(seq.token_ids, seq.cache_salt, (len(seq) - 1) // self.pool.block_size)

    def admit(self, request_id: int, matched: AbstractSequence[int] = ()) -> Sequence:
        """Move a sequence from waiting to running, with blocks for all its tokens.

        The first of them are ``matched``: they hold its beginning, and are retained for it already.
        """
        seq = self._pop(self.waiting, request_id)
        missing = self.pool.blocks_for(self.reach(seq)) - len(matched)
        seq.block_table = [*matched, *self.pool.allocate(missing, seq.traffic)]
        seq.num_computed = len(matched) * self.pool.block_size
        if seq.num_cached is None:
            seq.num_cached = min(seq.num_computed, seq.num_prompt)
        self.running[seq.traffic][request_id] = seq
        return seq

    def publish(self, seq: Sequence) -> None:
        """Let others share the blocks that ``seq`` has filled. Call it when a step has computed them."""
        count = seq.num_computed // self.pool.block_size
        filled = seq.token_ids[: count * self.pool.block_size]
        self.pool.publish(filled, seq.cache_salt, seq.block_table[:count], seq.traffic)

    def displace(self, request_id: int) -> Sequence:
        """Move a sequence from running back to waiting. It keeps its tokens, and lets go of its blocks.

        What they hold stays in the prefix cache, for as long as nobody needs the room.
        """
        seq = self._pop(self.running, request_id)
        self._free(seq)
        seq.num_computed = 0
        seq.epoch += 1
        seq.displacements += 1
        self._enqueue(seq)
        return seq

    def shrink(self, count: int) -> list[Sequence]:
        """Give ``count`` blocks up for good. Returns those who can never run in what is left; they are removed.

        Blank and cached blocks go first. If they are too few, running sequences are displaced: bulk before
        interactive, and of a class the cheapest to resume first. An output whose length was left open may become
        shorter. Raises ValueError where no block would stay.
        """
        left = self.pool.num_blocks - count
        if not 0 < left <= self.pool.num_blocks:
            raise ValueError(f"{count} of {self.pool.num_blocks} blocks cannot be given up: one must stay")
        self.limits = self._configured.resized(left)
        unfit = [seq for seq in self.sequences() if not self.fit(seq)]
        for seq in unfit:
            self.remove(seq.request_id)
        for traffic in (TrafficClass.BULK, TrafficClass.INTERACTIVE):
            for seq in sorted(self.running[traffic].values(), key=self._cost_to_resume):
                if self.pool.num_free >= count and self.pool.num_held(traffic) <= self.limits.blocks(traffic):
                    break
                self.displace(seq.request_id)
        self.pool.shrink(count)
        return unfit

    def reach(self, seq: Sequence) -> int:
        """The length for which a running ``seq`` needs blocks now: its own, or its greatest where it is fixed."""
        return seq.max_length if self.limits.is_fixed(seq) else len(seq)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken. For tests; costs O(everything)."""
        running = [seq for queue in self.running.values() for seq in queue.values()]
        self.pool.check({c: [seq.block_table for seq in self.running[c].values()] for c in TrafficClass})
        assert len(running) <= self.limits.max_num_seqs, "more sequences run than there are slots"
        for traffic in TrafficClass:
            mine = self.running[traffic]
            assert len(mine) <= self.limits.slots(traffic), f"{traffic} holds too many slots"
            assert self.pool.num_held(traffic) <= self.limits.blocks(traffic), f"{traffic} holds too many blocks"
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

    def _cost_to_resume(self, seq: Sequence) -> tuple[bool, int, int]:
        return self.limits.is_fixed(seq), seq.num_computed, -seq.arrival

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
        self.pool.release(seq.block_table, seq.traffic)
        seq.block_table = []

    @staticmethod
    def _pop(queues: Mapping[TrafficClass, OrderedDict[int, Sequence]], request_id: int) -> Sequence:
        for queue in queues.values():
            if request_id in queue:
                return queue.pop(request_id)
        raise KeyError(request_id)
