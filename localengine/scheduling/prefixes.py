"""Which block holds what: full blocks of tokens, each behind the blocks that came before it.

A tree whose edges are the token ids of one block. So a match is exact, token by token from the start of the
prompt: there is no hash that could collide, and what one tenant's salt leads to cannot be reached by another's.
Walking it costs a lookup a block. (SGLang's radix tree, arXiv 2312.07104, splits its edges at any token; whole
blocks are what a block table can share.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

__all__ = ["PrefixTree"]


_Edge = tuple[int, ...] | str | None
"""The tokens of one block; of the first edge, a salt."""


class _Node:
    """What an ``edge`` leads to from its parent. ``block`` is None where only longer prefixes are held."""

    __slots__ = ("block", "children", "edge", "parent")

    def __init__(self, parent: _Node | None = None, edge: _Edge = None) -> None:
        self.parent = parent
        self.edge = edge
        self.children: dict[_Edge, _Node] = {}
        self.block: int | None = None

    def child(self, edge: _Edge) -> _Node:
        """The node behind ``edge``, which is made where there is none."""
        found = self.children.get(edge)
        if found is None:
            found = self.children[edge] = _Node(self, edge)
        return found

    def prune(self) -> None:
        """Leave the tree if nothing is held here or behind, and so on upward."""
        node = self
        while node.parent is not None and node.block is None and not node.children:
            del node.parent.children[node.edge]
            node = node.parent


class PrefixTree:
    """Blocks by their contents. It knows nothing of who holds a block, or whether it may be written to."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._root = _Node()
        self._nodes: dict[int, _Node] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._nodes

    def __iter__(self) -> Iterator[int]:
        return iter(self._nodes)

    def match(self, token_ids: Sequence[int], salt: str | None, most: int) -> list[int]:
        """The blocks that hold the beginning of ``token_ids``, in order; at most ``most``, and full ones only."""
        found: list[int] = []
        node = self._root.children.get(salt)
        for edge in islice(self._edges(token_ids), most):
            node = None if node is None else node.children.get(edge)
            if node is None or node.block is None:
                break
            found.append(node.block)
        return found

    def publish(self, token_ids: Sequence[int], salt: str | None, blocks: Sequence[int]) -> list[int]:
        """Note that ``blocks`` hold the beginning of ``token_ids``, which fills them; return the new ones.

        Where another block is known to hold the same already, that one stays. Costs a lookup for each block behind
        the last that is known.
        """
        fresh: list[int] = []
        known = next((end for end in range(len(blocks), 0, -1) if blocks[end - 1] in self._nodes), 0)
        node = self._nodes[blocks[known - 1]] if known else self._root.child(salt)
        for block, edge in zip(blocks[known:], self._edges(token_ids, known), strict=False):
            node = node.child(edge)
            if node.block is None and block not in self._nodes:
                node.block = block
                self._nodes[block] = node
                fresh.append(block)
        node.prune()
        return fresh

    def forget(self, block: int) -> None:
        """``block`` will hold something else. What is held behind it stays, and is found again with it."""
        node = self._nodes.pop(block)
        node.block = None
        node.prune()

    def _edges(self, token_ids: Sequence[int], first: int = 0) -> Iterator[tuple[int, ...]]:
        size = self._block_size
        for start in range(first * size, len(token_ids) - size + 1, size):
            yield tuple(token_ids[start : start + size])
