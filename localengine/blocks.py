"""The pool of KV-cache blocks: who holds which, counted in blocks and never in tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = ["BlockPool"]


class BlockPool:
    """``num_blocks`` blocks of ``block_size`` tokens, each with the number of block tables that hold it.

    A block is free at count 0 and may be held by several tables at once. Taking and giving back are O(1) a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least 1 block of 1 token, not {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(
            range(num_blocks - 1, -1, -1)
        )  # a stack: a block used lately is still in the CPU's cache
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks ``num_tokens`` tokens occupy."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` free blocks, or none. Raises ValueError where fewer are free."""
        if not 0 <= count <= len(self._free):
            raise ValueError(f"{count} blocks asked for, {len(self._free)} are free")
        split = len(self._free) - count
        taken = self._free[split:][::-1]
        del self._free[split:]
        for block in taken:
            self._references[block] = 1
        return taken

    def retain(self, blocks: Sequence[int]) -> None:
        """Let one more table hold ``blocks``, which others hold already. All or none."""
        self._require_held(blocks)
        for block in blocks:
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """End one table's hold on ``blocks``. Those that nobody else holds become free. All or none."""
        self._require_held(blocks)
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)

    def releasable(self, blocks: Iterable[int]) -> int:
        """How many of one table's ``blocks`` would become free if it let go of them."""
        return sum(self._references[block] == 1 for block in blocks)

    def references(self, block: int) -> int:
        """How many tables hold ``block``."""
        return self._references[block]

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless the books agree with ``tables``, all the block tables there are.

        Every block is free or referenced, none is both, and each count is the number of tables holding the block.
        """
        held = Counter(block for table in tables for block in table)
        free = Counter(self._free)
        problems = [
            f"block {block}: {self._references[block]} references, {held[block]} tables, {free[block]} times free"
            for block in range(self.num_blocks)
            if self._references[block] != held[block] or free[block] != (held[block] == 0)
        ]
        if strangers := (set(held) | set(free)) - set(range(self.num_blocks)):
            problems.append(f"blocks that do not exist: {sorted(strangers)}")
        if problems:
            raise AssertionError("; ".join(problems))

    def _require_held(self, blocks: Sequence[int]) -> None:
        if len(set(blocks)) != len(blocks) or any(not self._references[block] for block in blocks):
            raise ValueError(f"not every one of these blocks is held, once: {list(blocks)}")
