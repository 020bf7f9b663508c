"""The pool of KV-cache blocks: who holds which, counted in blocks and never in tokens."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from orchestra.localengine.scheduling.prefixes import PrefixTree
from orchestra.policies.traffic import TrafficClass

__all__ = ["BlockPool"]

_EVICTED_FIRST = (TrafficClass.BULK, TrafficClass.INTERACTIVE)


class BlockPool:
    """``num_blocks`` blocks of ``block_size`` tokens, each with the number of block tables that hold it.

    A block that a table holds is *held*, by several at once perhaps, and a table belongs to a traffic class. Once
    its tokens are computed it may be *published*: then others that begin alike share it. When the last table lets
    go of it, a published block is *cached*: it keeps its contents for as long as no blank one is left, and belongs
    to the most urgent class that ever held it. Any other is *blank*. Blank and cached blocks are *free*. Where the
    pool shrinks, it gives free blocks up.

    With ``caching`` off nothing can be published. Taking and giving back are O(1) a block.
    """

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least 1 block of 1 token, not {num_blocks} of {block_size}")
        self._every = range(num_blocks)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.caching = caching
        self.evictions = 0
        # a stack: a block used lately is still in the CPU's cache
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._given_up: set[int] = set()
        self._references = {traffic: [0] * num_blocks for traffic in TrafficClass}
        self._held = dict.fromkeys(TrafficClass, 0)
        self._prefixes = PrefixTree(block_size)
        self._owners: dict[int, TrafficClass] = {}  # of the published
        self._cached: dict[TrafficClass, OrderedDict[int, None]] = {c: OrderedDict() for c in TrafficClass}

    @property
    def num_free(self) -> int:
        return len(self._blank) + sum(map(len, self._cached.values()))

    @property
    def num_blank(self) -> int:
        return len(self._blank)

    def num_cached(self, traffic: TrafficClass) -> int:
        """How many cached blocks belong to the class."""
        return len(self._cached[traffic])

    def num_held(self, traffic: TrafficClass) -> int:
        """How many blocks the tables of the class hold; one that several of them hold counts once."""
        return self._held[traffic]

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks ``num_tokens`` tokens occupy."""
        return -(-num_tokens // self.block_size)

    def references(self, block: int, traffic: TrafficClass | None = None) -> int:
        """How many tables hold ``block``: those of a class, or all."""
        if traffic is not None:
            return self._references[traffic][block]
        return sum(references[block] for references in self._references.values())

    def owner(self, block: int) -> TrafficClass | None:
        """Whose a block is once it is cached; None where it is not published, and will be blank."""
        return self._owners.get(block)

    def match(self, token_ids: Sequence[int], salt: str | None, most: int) -> list[int]:
        """The published blocks that hold the beginning of ``token_ids``, at most ``most``. None is taken."""
        return self._prefixes.match(token_ids, salt, most)

    def allocate(self, count: int, traffic: TrafficClass) -> list[int]:
        """Take ``count`` free blocks for a table, or none: blank ones first, then those cached for longest.

        Those that belong to bulk go before any of interactive's. Raises ValueError where fewer are free.
        """
        if not 0 <= count <= self.num_free:
            raise ValueError(f"{count} blocks asked for, {self.num_free} are free")
        taken = self._withdraw(count)
        for block in taken:
            self._references[traffic][block] = 1
        self._held[traffic] += count
        return taken

    def retain(self, blocks: Sequence[int], traffic: TrafficClass) -> None:
        """Let one more table hold ``blocks``, which others hold already or which are cached. All or none."""
        if len(set(blocks)) != len(blocks) or any(not self._in_use(block) for block in blocks):
            raise ValueError(f"not every one of these blocks is held or cached, once: {list(blocks)}")
        references = self._references[traffic]
        for block in blocks:
            if (owner := self._owners.get(block)) is not None:
                self._cached[owner].pop(block, None)
                if traffic is TrafficClass.INTERACTIVE:
                    self._owners[block] = traffic
            self._held[traffic] += not references[block]
            references[block] += 1

    def release(self, blocks: Sequence[int], traffic: TrafficClass) -> None:
        """End one table's hold on ``blocks``. Those that nobody else holds become free. All or none."""
        references = self._references[traffic]
        if len(set(blocks)) != len(blocks) or any(not references[block] for block in blocks):
            raise ValueError(f"not every one of these blocks is held by {traffic}, once: {list(blocks)}")
        for block in reversed(blocks):  # a prefix is of use without what follows it, and goes last
            references[block] -= 1
            self._held[traffic] -= not references[block]
            if not self.references(block):
                owner = self._owners.get(block)
                if owner is None:
                    self._blank.append(block)
                else:
                    self._cached[owner][block] = None

    def publish(
        self, token_ids: Sequence[int], salt: str | None, blocks: Sequence[int], traffic: TrafficClass
    ) -> None:
        """Let others share ``blocks``, which a table of the class holds, full of the beginning of ``token_ids``.

        Only tokens that a finished step has computed may be published.
        """
        if self.caching:
            for block in self._prefixes.publish(token_ids, salt, blocks):
                self._owners[block] = traffic

    def shrink(self, count: int) -> None:
        """Give up ``count`` free blocks for good, the same that `allocate` would take.

        Raises ValueError where fewer are free, or no block would stay.
        """
        if not 0 <= count <= min(self.num_free, self.num_blocks - 1):
            raise ValueError(
                f"{count} of {self.num_blocks} blocks cannot be given up: {self.num_free} are free, one must stay"
            )
        self._given_up.update(self._withdraw(count))
        self.num_blocks -= count

    @property
    def given_up(self) -> frozenset[int]:
        """The blocks that `shrink` has taken, which nobody gets any more."""
        return frozenset(self._given_up)

    def check(self, tables: Mapping[TrafficClass, Iterable[Sequence[int]]]) -> None:
        """Raise AssertionError unless the books agree with ``tables``, all the block tables there are.

        Every block is blank, cached, held, or given up, and only one of these; counts are those of the tables.
        """
        problems = []
        held: Counter[int] = Counter()
        for traffic in TrafficClass:
            mine = Counter(block for table in tables.get(traffic, ()) for block in table)
            held += mine
            if self._held[traffic] != len(mine):
                problems.append(f"{traffic} holds {len(mine)} blocks, not {self._held[traffic]}")
            counts = self._references[traffic]
            problems += [
                f"block {block}: {counts[block]} references, {mine[block]} tables of {traffic}"
                for block in self._every
                if counts[block] != mine[block]
            ]
        unheld = Counter((*self._blank, *self._every_cached(), *self._given_up))
        problems += [
            f"block {block}: {held[block]} tables, {unheld[block]} times free or given up"
            for block in self._every
            if unheld[block] != (held[block] == 0)
        ]
        if strangers := (set(held) | set(unheld)) - set(self._every):
            problems.append(f"blocks that do not exist: {sorted(strangers)}")
        if set(self._prefixes) != set(self._owners) or (set(self._blank) | self._given_up) & set(self._owners):
            problems.append("blocks that are published and have no owner, or are blank or given up")
        if any(self._owners.get(block) is not c for c in TrafficClass for block in self._cached[c]):
            problems.append("cached blocks that belong to another class")
        if self.num_blocks + len(self._given_up) != len(self._every):
            problems.append(f"{self.num_blocks} blocks and {len(self._given_up)} given up")
        if problems:
            raise AssertionError("; ".join(problems))

    def _withdraw(self, count: int) -> list[int]:
        """Take ``count`` blocks from those that are free: blank ones first, then those cached for longest."""
        split = max(len(self._blank) - count, 0)
        withdrawn = self._blank[split:][::-1]
        del self._blank[split:]
        while len(withdrawn) < count:
            withdrawn.append(self._evict())
        return withdrawn

    def _evict(self) -> int:
        cached = next(self._cached[traffic] for traffic in _EVICTED_FIRST if self._cached[traffic])
        block, _ = cached.popitem(last=False)
        self._prefixes.forget(block)
        del self._owners[block]
        self.evictions += 1
        return block

    def _in_use(self, block: int) -> bool:
        return bool(self.references(block)) or block in self._owners

    def _every_cached(self) -> Iterator[int]:
        for cached in self._cached.values():
            yield from cached
