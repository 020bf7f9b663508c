"""Decode steps as CUDA graphs: hundreds of launches by one call, for a few numbers of rows.

A step of one token a row is short, and launching its kernels one by one takes longer than they do. So it is
recorded once for each of a few numbers of rows, and replayed with the rows at hand and some that are nobody's:
those write no key or value, attend to nothing, and what comes out of them means nothing. (The way is common: CUDA
graphs over padded batch sizes, as in vLLM and SGLang.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestra.localengine.gpu.device import Device
from orchestra.localengine.gpu.eager import resolved
from orchestra.localengine.gpu.inputs import StepInputs
from orchestra.localengine.gpu.kernels import GpuKernels, PlanBuffer
from orchestra.localengine.models.batch import AttentionPlan, Batch
from orchestra.localengine.models.transformer import Transformer

__all__ = ["DecodeGraphs", "buckets"]

_MOST_ROWS = 256  # beyond, a step takes so long that its launches do not matter


def buckets(most: int) -> list[int]:
    """Numbers of rows to record for steps of up to ``most`` (at most 256), in ascending order.

    From eight rows on a step is replayed with at most half as many rows again as it has. Raises ValueError for a
    number below 1.
    """
    if most < 1:
        raise ValueError(f"a step has at least one row, not {most}")
    sizes = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, _MOST_ROWS]
    return sizes[: bisect_left(sizes, min(most, _MOST_ROWS)) + 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """A decode step of so many rows."""

    plans: Mapping[int | None, PlanBuffer]  # by window
    replay: Callable[[], None]


class DecodeGraphs:
    """Recorded decode steps of one model over one pool.

    ``sizes`` are numbers of rows, `buckets`; a row has up to ``most_blocks`` blocks. ``pools`` are the layers'.
    ``kept`` int64 is what the step before drew. The device must be active, and it takes a few seconds.
    """

    def __init__(
        self,
        device: Device,
        kernels: GpuKernels,
        model: Transformer,
        pools: Sequence[Tensor],
        kept: Tensor,
        sizes: Sequence[int],
        most_blocks: int,
    ) -> None:
        self._device = device
        self._sizes = sorted(sizes)
        rows, kv_heads = self._sizes[-1], pools[0].shape[1]
        there = device.torch_device
        # what a replay reads: token ids, positions and slots of all rows, end to end
        self._inputs = torch.zeros(rows * (2 + kv_heads), dtype=torch.int64, device=there)
        self._inputs[2 * rows :] = -1
        token_ids, positions, slots = torch.split(self._inputs, [rows, rows, rows * kv_heads])
        slots = slots.view(rows, kv_heads)
        everyone = torch.arange(rows, device=there)
        # and what it leaves: one buffer for all sizes, as one is replayed at a time
        self._logits = torch.zeros(rows, model.spec.vocab_size, dtype=torch.float32, device=there)
        self._recorded: dict[int, _Recorded] = {}
        memory = device.graph_pool()

        def record(size: int) -> _Recorded:
            plans = {w: kernels.plan_buffer(pools[0], size, most_blocks, window=w) for w in model.windows}

            def compute() -> None:
                batch = Batch(
                    token_ids=resolved(token_ids[:size], kept),
                    positions=positions[:size],
                    slots=slots[:size],
                    num_decode=size,
                    attention={w: AttentionPlan(own.plan, None) for w, own in plans.items()},
                    wanted=everyone[:size],
                )
                self._logits[:size] = model.forward(batch, pools)

            compute()
            device.synchronize()
            return _Recorded(plans=plans, replay=device.capture(compute, memory))

        for size in reversed(self._sizes):  # the others fit into the memory of the largest
            self._recorded[size] = record(size)

    @property
    def most_rows(self) -> int:
        """The largest step that was recorded."""
        return self._sizes[-1]

    def run(self, inputs: StepInputs) -> Tensor:
        """Launch a step of rows of one token each: the logits of each, float32 [rows, vocab].

        They are overwritten by the next step. Raises ValueError where there are too many rows.
        """
        count = len(inputs.rows)
        if count > self.most_rows or inputs.num_decode < count:
            raise ValueError(f"recorded are steps of up to {self.most_rows} rows of one token each")
        recorded = self._recorded[self._sizes[bisect_left(self._sizes, count)]]
        rows = self.most_rows
        pinned = self._device.pinned(self._inputs.nbytes).view(torch.int64)
        host = pinned.numpy()
        host[: 2 * rows] = 0
        host[2 * rows :] = -1  # the slots of rows that are nobody's
        host[:count] = inputs.token_ids
        host[rows : rows + count] = inputs.positions
        host[2 * rows :].reshape(rows, -1)[:count] = inputs.slots
        self._inputs.copy_(pinned, non_blocking=True)
        for plan in recorded.plans.values():
            plan.fill(inputs.tables, inputs.lengths)
        recorded.replay()
        return self._logits[:count]
