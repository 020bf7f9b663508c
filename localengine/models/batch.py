"""One step's tokens, flat, with all that the layers need to know about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestra.kernels.attention import DecodePlan, ExtendPlan, plan_decode, plan_extend
from orchestra.localengine.step import RowInput

__all__ = ["Batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens of all rows of a step, end to end: rows of one token first, then runs.

    ``token_ids``, ``positions``: int64 [tokens]. ``slots``: int64 [tokens, kv_heads], where keys and values go, as
    rows of a layer's pool flattened to [blocks * kv_heads * block_size, 2 * head_dim].
    ``decode`` covers the first ``num_decode`` tokens and ``extend`` the rest; None where there are none.
    ``wanted``: int64, the tokens whose logits are asked for.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    num_decode: int
    decode: DecodePlan | None
    extend: ExtendPlan | None
    wanted: Tensor

    @classmethod
    def of(cls, rows: Sequence[RowInput], wanted: Sequence[range], pool: Tensor, heads: int) -> Batch:
        """Lay out ``rows``, which must hold the single-token rows first (best in order of length).

        ``wanted[i]``: the tokens of row ``i`` whose logits are asked for, as offsets into its ``token_ids``.
        ``pool`` is any layer's; ``heads`` is the number of query heads.
        """
        singles = [row for row in rows if len(row.token_ids) == 1]
        runs = rows[len(singles) :]
        token_ids = [token for row in rows for token in row.token_ids]
        positions = [row.start + i for row in rows for i in range(len(row.token_ids))]
        kv_heads, block_size = pool.shape[1:3]
        blocks = [
            row.block_table[p // block_size]
            for row in rows
            for p in range(row.start, row.start + len(row.token_ids))
        ]
        wanted_tokens: list[int] = []
        first = 0
        for row, offsets in zip(rows, wanted, strict=True):
            wanted_tokens.extend(first + offset for offset in offsets)
            first += len(row.token_ids)
        position = torch.tensor(positions)
        block_head = torch.tensor(blocks)[:, None] * kv_heads + torch.arange(kv_heads)  # [tokens, kv_heads]
        return cls(
            token_ids=torch.tensor(token_ids),
            positions=position,
            slots=block_head * block_size + (position % block_size)[:, None],
            num_decode=len(singles),
            decode=plan_decode([row.block_table for row in singles], [row.start + 1 for row in singles], pool)
            if singles
            else None,
            extend=plan_extend(
                [row.block_table for row in runs],
                [row.start for row in runs],
                [len(row.token_ids) for row in runs],
                pool,
                heads,
            )
            if runs
            else None,
            wanted=torch.tensor(wanted_tokens, dtype=torch.int64),
        )
