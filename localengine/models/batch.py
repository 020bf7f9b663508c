"""One step's tokens, flat, with all that the layers need to know about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy
import torch
from torch import Tensor

from orchestra.kernels.attention import DecodePlan, ExtendPlan, plan_decode, plan_extend
from orchestra.localengine.step import RowInput

__all__ = ["AttentionPlan", "Batch"]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """``decode`` covers the rows of one token and ``extend`` the others; None where there are none."""

    decode: DecodePlan | None
    extend: ExtendPlan | None


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens of all rows of a step, end to end: rows of one token first, then runs.

    ``token_ids``, ``positions``: int64 [tokens]. ``slots``: int64 [tokens, kv_heads], where keys and values go, as
    rows of a layer's pool flattened to [blocks * kv_heads * block_size, 2 * head_dim].
    The first ``num_decode`` tokens are rows of their own. ``attention``: a plan for every window of the model's
    layers, None standing for all that went before.
    ``wanted``: int64, the tokens whose logits are asked for.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    num_decode: int
    attention: Mapping[int | None, AttentionPlan]
    wanted: Tensor

    @classmethod
    def of(
        cls,
        rows: Sequence[RowInput],
        wanted: Sequence[range],
        pool: Tensor,
        heads: int,
        windows: AbstractSet[int | None] = frozenset({None}),
        *,
        strict: bool = False,
    ) -> Batch:
        """Lay out ``rows``, which must hold the single-token rows first (best in order of length).

        ``wanted[i]``: the tokens of row ``i`` whose logits are asked for, as offsets into its ``token_ids``.
        ``pool`` is any layer's; ``heads`` is the number of query heads. With ``strict`` a single-token row is
        attended to alike, to the last bit, in any company.
        """
        kv_heads, block_size = pool.shape[1:3]
        counts = [len(row.token_ids) for row in rows]
        firsts = list(accumulate(counts, initial=0))  # each row's first token in the step
        token_ids = numpy.fromiter(chain.from_iterable(row.token_ids for row in rows), numpy.int64, firsts[-1])
        starts = numpy.array([row.start for row in rows])
        position = numpy.arange(firsts[-1]) + (starts - firsts[:-1]).repeat(counts)
        # all block tables end to end, and where in them each row's begins
        tables = numpy.fromiter(chain.from_iterable(row.block_table for row in rows), numpy.int64)
        begins = numpy.array([0, *accumulate(len(row.block_table) for row in rows[:-1])])
        block, offset = numpy.divmod(position, block_size)
        block = tables[begins.repeat(counts) + block]
        slots = (block[:, None] * kv_heads + numpy.arange(kv_heads)) * block_size + offset[:, None]
        asked = [first + offset for first, offsets in zip(firsts[:-1], wanted, strict=True) for offset in offsets]
        num_decode = counts.count(1)
        return cls(
            token_ids=torch.from_numpy(token_ids),
            positions=torch.from_numpy(position),
            slots=torch.from_numpy(slots),
            num_decode=num_decode,
            attention=_plans(rows[:num_decode], rows[num_decode:], pool, heads, windows, strict),
            wanted=torch.tensor(asked, dtype=torch.int64),
        )


def _plans(
    singles: Sequence[RowInput],
    runs: Sequence[RowInput],
    pool: Tensor,
    heads: int,
    windows: AbstractSet[int | None],
    strict: bool,
) -> dict[int | None, AttentionPlan]:
    longest = max(row.start + len(row.token_ids) for row in (*singles, *runs))
    made: dict[int | None, AttentionPlan] = {}
    plans: dict[int | None, AttentionPlan] = {}
    for window in windows:
        narrow = None if window is None or window >= longest else window  # a window that hides nothing is none
        if narrow not in made:
            made[narrow] = AttentionPlan(
                plan_decode(
                    [row.block_table for row in singles],
                    [row.start + 1 for row in singles],
                    pool,
                    window=narrow,
                    strict=strict,
                )
                if singles
                else None,
                plan_extend(
                    [row.block_table for row in runs],
                    [row.start for row in runs],
                    [len(row.token_ids) for row in runs],
                    pool,
                    heads,
                    window=narrow,
                )
                if runs
                else None,
            )
        plans[window] = made[narrow]
    return plans
