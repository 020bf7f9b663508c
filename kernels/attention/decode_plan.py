"""A decode step's work list on the device, for one step or filled anew for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from orchestra.kernels.attention.block_table import BlockTable
from orchestra.kernels.attention.decode_work import ITEM, MERGE, DecodeWork, decode_work
from orchestra.kernels.kv_pool import head_dim_of
from orchestra.kernels.launch import LaunchConfig, arch_of, launch_config

__all__ = ["DecodePlan", "DecodePlanBuffer", "DecodeScratch", "plan_decode"]

_PROGRAMS_PER_SM = 4  # that run side by side; there is room for six of bfloat16 and three of float32
_SMS = 132  # of an H200; where there is no GPU to ask
_STRICT_SPLIT = 256  # positions in a chunk where nothing but a row's own length may decide


class DecodeScratch:
    """Room for the partial results of one plan, made for the first layer that asks and kept.

    So a layer allocates nothing, and a CUDA graph that was captured over the plan finds it where it was.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def tensors(self, slots: int, heads: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Float32: sums of values [slots, heads, head_dim], and what belongs to each [slots, heads, 2]."""
        if (heads, head_dim) not in self._made:
            sums = torch.empty((slots, heads, head_dim), dtype=torch.float32, device=device)
            stats = torch.empty((slots, heads, 2), dtype=torch.float32, device=device)
            self._made[heads, head_dim] = sums, stats
        return self._made[heads, head_dim]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """The parts of a :class:`DecodeWork` on the pool's device. Items and merges beyond their number are zero.

    ``rows`` is how many rows a decode must have, and ``slots`` how many partial results there may be. Those lie in
    ``scratch``, which all layers share: a plan serves one stream at a time.
    """

    rows: int
    slots: int
    items: Tensor  # int32 [n, 5]
    merges: Tensor  # int32 [m, 3]
    tables: Tensor  # int32 [blocks]
    launch: LaunchConfig
    scratch: DecodeScratch = field(default_factory=DecodeScratch)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """What a work list depends on beside the rows."""

    block_size: int
    window: int | None
    split: int | None  # positions in a chunk; None where all rows together decide
    programs: int  # of one KV head that run side by side
    launch: LaunchConfig

    @classmethod
    def of(cls, pool: Tensor, window: int | None, strict: bool, num_sms: int | None) -> _Rules:
        kv_heads, block_size = pool.shape[1:3]
        if num_sms is None:
            on_gpu = pool.device.type == "cuda"
            num_sms = torch.cuda.get_device_properties(pool.device).multi_processor_count if on_gpu else _SMS
        return cls(
            block_size=block_size,
            window=window,
            split=_STRICT_SPLIT if strict else None,
            programs=max(1, num_sms * _PROGRAMS_PER_SM // kv_heads),
            launch=launch_config(
                "attention.decode", arch_of(pool.device), head_dim=head_dim_of(pool), key_bytes=pool.itemsize
            ),
        )

    def work(self, block_tables: Sequence[BlockTable], lengths: Sequence[int]) -> DecodeWork:
        return decode_work(
            block_tables,
            lengths,
            block_size=self.block_size,
            window=self.window,
            split=self.split,
            programs=self.programs,
            tile=self.launch.blocks["BLOCK_N"],
        )

    def plan(self, flat: Tensor, *, rows: int, items: int, merges: int, slots: int) -> DecodePlan:
        """The plan whose parts lie end to end in ``flat``."""
        sizes = [items * len(ITEM), merges * len(MERGE)]
        item_part, merge_part, tables = torch.split(flat, [*sizes, len(flat) - sum(sizes)])
        return DecodePlan(
            rows=rows,
            slots=slots,
            items=item_part.view(items, len(ITEM)),
            merges=merge_part.view(merges, len(MERGE)),
            tables=tables,
            launch=self.launch,
        )


def plan_decode(
    block_tables: Sequence[BlockTable],
    lengths: Sequence[int],
    pool: Tensor,
    *,
    window: int | None = None,
    strict: bool = False,
    num_sms: int | None = None,
) -> DecodePlan:
    """Plan for rows of one query each: row ``i`` sees positions ``0 .. lengths[i] - 1`` of its block table.

    With a ``window`` it sees the last so many of them only. With ``strict`` a row is cut by its own length alone,
    and its parts are merged in the order of its positions, so that its result is the same to the last bit in any
    company; without, rows are cut such that all together fill the device. ``pool`` is any layer's; only its shape
    and device matter. Rows may be in any order. Block tables are quickest as int32 (see `BlockTable`).

    ``num_sms`` is the number of the device's multiprocessors; None asks the device.

    Raises ValueError for a row without positions, or whose block table does not cover them.
    """
    rules = _Rules.of(pool, window, strict, num_sms)
    work = rules.work(block_tables, lengths)
    items, merges = _rounded(len(work.items)), _rounded(len(work.merges))
    flat = _staged(work, items, merges, pool.device).to(pool.device, non_blocking=True)
    return rules.plan(flat, rows=len(lengths), items=items, merges=merges, slots=work.slots)


class DecodePlanBuffer:
    """A decode plan of one size, filled anew for every step: what a CUDA graph is captured over.

    It has room for ``rows`` rows, whose block tables have up to ``blocks`` entries each; the rest is as in
    :func:`plan_decode`. The grid covers the largest work list. Programs beyond the work at hand return at once,
    and rows beyond those that it was last filled with get results that mean nothing.
    """

    def __init__(
        self,
        pool: Tensor,
        rows: int,
        blocks: int,
        *,
        window: int | None = None,
        strict: bool = False,
        num_sms: int | None = None,
    ) -> None:
        self._rules = rules = _Rules.of(pool, window, strict, num_sms)
        self._most_positions = blocks * rules.block_size
        seen = self._most_positions if window is None else min(self._most_positions, window)
        if rules.split is not None:
            most = rows * -(-seen // rules.split)
        else:  # all chunks run side by side, or each is twice a fair share or a whole row
            most = max(rules.programs, rows + rules.programs // 2)
        self._items, self._merges = _rounded(most), _rounded(rows)
        fixed = self._items * len(ITEM) + self._merges * len(MERGE)
        self._flat = torch.zeros(fixed + rows * blocks, dtype=torch.int32, device=pool.device)
        self.plan = rules.plan(self._flat, rows=rows, items=self._items, merges=self._merges, slots=most)

    def fill(self, block_tables: Sequence[BlockTable], lengths: Sequence[int]) -> None:
        """Make :attr:`plan` that of these rows, in the order of the current stream; nothing waits.

        Raises ValueError where they are more or longer than there is room for, and as :func:`plan_decode` does.
        """
        longest = max(lengths, default=0)
        if len(lengths) > self.plan.rows or longest > self._most_positions:
            raise ValueError(
                f"the plan has room for {self.plan.rows} rows of {self._most_positions} positions, "
                f"not for {len(lengths)} rows of up to {max(lengths)}"
            )
        staged = _staged(self._rules.work(block_tables, lengths), self._items, self._merges, self._flat.device)
        self._flat[: len(staged)].copy_(staged, non_blocking=True)


def _rounded(count: int) -> int:
    """Up to four, so that each part of a list begins at a multiple of 16 bytes: else kernels compile once more."""
    return -(-count // 4) * 4


def _staged(work: DecodeWork, items: int, merges: int, device: torch.device) -> Tensor:
    """On the host, from where a copy to the device waits for nothing: pinned, and kept until the copy is done."""
    flat = torch.from_numpy(work.flat(items, merges))
    return flat if device.type == "cpu" else flat.pin_memory()
