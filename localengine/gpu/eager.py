"""A step launched kernel by kernel: any mixture of rows, and what recorded steps are recorded from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orchestra.localengine.gpu.device import Device, Event
from orchestra.localengine.gpu.inputs import StepInputs
from orchestra.localengine.gpu.kernels import GpuKernels
from orchestra.localengine.gpu.staging import send
from orchestra.localengine.models.batch import AttentionPlan, Batch
from orchestra.localengine.models.transformer import Transformer

__all__ = ["EagerSteps", "resolved"]

_LAYERS_AHEAD = 4  # that are launched before the first of them has run, where a step may be abandoned


class EagerSteps:
    """Launches steps of ``model`` on ``device``. ``kept`` int64 is what the step before drew."""

    def __init__(self, device: Device, kernels: GpuKernels, model: Transformer, kept: Tensor) -> None:
        self._device = device
        self._kernels = kernels
        self._model = model
        self._kept = kept

    def run(
        self, inputs: StepInputs, pools: Sequence[Tensor], abandon: Callable[[], bool] | None = None
    ) -> Tensor:
        """Launch a step: the logits of ``inputs.wanted``, float32 [wanted, vocab].

        Where ``abandon`` says yes between two layers, StepAbandoned is raised.
        """
        host = {"token_ids": inputs.token_ids, "positions": inputs.positions}
        sent = send(self._device, host | {"slots": inputs.slots, "wanted": inputs.wanted})
        token_ids = sent["token_ids"]
        if inputs.token_ids.min() < 0:
            token_ids = resolved(token_ids, self._kept)
        batch = Batch(
            token_ids=token_ids,
            positions=sent["positions"],
            slots=sent["slots"],
            num_decode=inputs.num_decode,
            attention=self._plans(inputs, pools[0]),
            wanted=sent["wanted"],
        )
        return self._model.forward(batch, pools, None if abandon is None else self._paced(abandon))

    def _plans(self, inputs: StepInputs, pool: Tensor) -> dict[int | None, AttentionPlan]:
        longest = max(inputs.lengths)
        made: dict[int | None, AttentionPlan] = {}
        for window in self._model.windows:
            narrow = None if window is None or window >= longest else window  # one that hides nothing is none
            if narrow not in made:
                made[narrow] = self._plan(inputs, pool, narrow)
            made[window] = made[narrow]
        return made

    def _plan(self, inputs: StepInputs, pool: Tensor, window: int | None) -> AttentionPlan:
        count = inputs.num_decode
        tables, runs = inputs.tables, inputs.rows[count:]
        decode = extend = None
        if count:
            decode = self._kernels.plan_decode(tables[:count], inputs.lengths[:count], pool, window=window)
        if runs:
            starts, counts = [row.start for row in runs], [len(row.token_ids) for row in runs]
            heads = self._model.spec.num_heads
            extend = self._kernels.plan_extend(tables[count:], starts, counts, pool, heads, window=window)
        return AttentionPlan(decode, extend)

    def _paced(self, abandon: Callable[[], bool]) -> Callable[[], bool]:
        """``abandon``, but the device is close when it is asked: launches run far ahead of what they launch."""
        ahead: deque[Event] = deque()

        def ask() -> bool:
            ahead.append(self._device.event())
            if len(ahead) > _LAYERS_AHEAD:
                ahead.popleft().wait()
            return abandon()

        return ask


def resolved(token_ids: Tensor, kept: Tensor) -> Tensor:
    """``token_ids`` with those that are below 0, ``-1 - i``, taken from ``kept[i]``."""
    return torch.where(token_ids < 0, kept[(-1 - token_ids).clamp_(min=0)], token_ids)
