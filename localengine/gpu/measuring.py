"""The largest steps there can be, run once: what they take of a device's memory beside weights and KV pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy
from torch import Tensor

from orchestra.kernels.kv_pool import KvLayout
from orchestra.localengine.gpu.device import Device
from orchestra.localengine.gpu.eager import EagerSteps
from orchestra.localengine.gpu.inputs import StepInputs
from orchestra.localengine.gpu.sampling import DeviceSampler
from orchestra.localengine.gpu.sizing import DeviceMemory
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.step import DrawExtras, RowInput

__all__ = ["measure"]

_FLOAT32_BYTES = 4
# what a draw takes the most memory for, each a copy of all logits or several
_RAW = SamplingParams(
    top_k=50,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    frequency_penalty=0.1,
    presence_penalty=0.1,
    logit_bias={0: 1.0},
    logprobs=20,
)
_PROCESSED = replace(_RAW, logprobs_mode="processed")


def measure(
    device: Device,
    steps: EagerSteps,
    sampler: DeviceSampler,
    spec: ModelSpec,
    layout: KvLayout,
    *,
    step_tokens: int,
    max_num_seqs: int,
    sizes: Sequence[int],
) -> DeviceMemory:
    """What a step of ``step_tokens`` tokens takes, if all their logits are asked for, and a decode step of the
    largest of ``sizes``, which are to be recorded; and what is free without them.
    """
    step_peak, decode_peak = _peaks(device, steps, sampler, spec, layout, step_tokens, max_num_seqs, sizes)
    device.release_cache()
    free, total = device.memory()
    return DeviceMemory(free=free, total=total, step_peak=step_peak, decode_peak=decode_peak, graphs=len(sizes))


def _peaks(
    device: Device,
    steps: EagerSteps,
    sampler: DeviceSampler,
    spec: ModelSpec,
    layout: KvLayout,
    step_tokens: int,
    max_num_seqs: int,
    sizes: Sequence[int],
) -> tuple[int, int]:
    """The most bytes that either step takes, on a small pool that all rows and layers share until this returns."""
    longest = min(step_tokens, spec.max_position)
    table = numpy.arange(-(-longest // layout.block_size), dtype=numpy.int32)
    pools = [layout.allocate(1, len(table), device.torch_device)[0]] * spec.num_layers

    said = DrawExtras(history=(0,) * longest)

    def rows(counts: Sequence[int], params: SamplingParams = _RAW) -> list[RowInput]:
        return [RowInput(i, 0, (0,) * count, 0, (), params, i, said) for i, count in enumerate(counts)]

    def step(counts: Sequence[int]) -> Tensor:
        inputs = StepInputs.of(
            rows(counts),
            [range(count) for count in counts],
            [table] * len(counts),
            kv_heads=spec.num_kv_heads,
            block_size=layout.block_size,
            drawn={},
        )
        return steps.run(inputs, pools)

    def largest() -> None:
        whole, rest = divmod(step_tokens, longest)
        logits = step([longest] * whole + [rest] * bool(rest))
        sampler.score(logits, [0] * len(logits), 1)
        drawn = min(max_num_seqs, len(logits))
        for params in (_RAW, _PROCESSED):  # a mixture takes no more than the one or the other
            sampler.draw(logits[:drawn], rows([1] * drawn, params))

    def decode() -> None:
        step([1] * min(sizes[-1], step_tokens))

    largest()  # libraries take memory of their own, once
    step_peak = device.peak(largest)
    if not sizes:
        return step_peak, 0
    decode()
    # the logits of recorded steps have a place of their own beside that
    return step_peak, device.peak(decode) + sizes[-1] * spec.vocab_size * _FLOAT32_BYTES
