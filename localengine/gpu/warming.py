"""Every kernel that a request may need, launched once before the first request: none compiles while others wait.

Triton compiles a kernel when it is first launched, for about a second, and anew for each size of a tile, for
attention with a window and without, and for each way of drawing. The steps here meet all of these; what they
compute means nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy
import torch

from orchestra.kernels.attention.extend_plan import FEWEST_ROWS
from orchestra.kernels.kv_pool import KvLayout
from orchestra.localengine.gpu.device import Device
from orchestra.localengine.gpu.eager import EagerSteps
from orchestra.localengine.gpu.inputs import StepInputs
from orchestra.localengine.gpu.sampling import DeviceSampler
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.step import DrawExtras, RowInput

__all__ = ["Step", "warm_up", "warming_steps"]

_FAR = 32768  # positions: a context that is divided among programs, whatever else is in the step
_ALL = SamplingParams(temperature=1.0)
_SOME = replace(_ALL, top_p=0.9)
_LIKELY = replace(_SOME, min_p=0.1)
_DRAWN = (
    SamplingParams(temperature=0),
    _ALL,
    _SOME,
    _LIKELY,
    replace(_SOME, logprobs=0, logprobs_mode="processed"),
    replace(_LIKELY, logprobs=0, logprobs_mode="processed"),
)

Step = Sequence[tuple[int, int]]
"""Where each of its rows starts, and how many tokens it has."""


def warming_steps(
    spec: ModelSpec, windows: Collection[int | None], *, step_tokens: int, max_num_seqs: int
) -> Iterator[Step]:
    """Yield steps among which attention launches every kernel that a step of so many tokens and rows may launch.

    An extend has tiles of three sizes: the smallest where no run fills more, and the largest where there is work
    for the whole device even so (see `plan_extend`). Its results are merged where a long context is divided. Each
    of these is met with the ``windows`` of the layers hiding something, and hiding nothing.
    """
    group = spec.num_heads // spec.num_kv_heads
    fills = max(2, FEWEST_ROWS // group + 1)  # queries that are more than the smallest tile holds
    rows = max(2, max_num_seqs)
    for longest in _contexts(spec.max_position, windows):
        yield [(longest - 1, 1)]
        if step_tokens > 1:
            yield [(longest - 2, 2)]
        if min(step_tokens, longest) < fills:
            continue
        yield [(longest - fills, fills)]
        # as many tiles as there can be: a run of two queries has one of its own, others share what is left
        count = min(rows, (step_tokens - fills) // 2 + 1)
        runs, spare = [2] * count, step_tokens - 2 * count
        for number in reversed(range(count)):
            more = min(spare, longest - 2)
            runs[number] += more
            spare -= more
        yield [(longest - runs[0], runs[0]), *((0, run) for run in runs[1:])]
        # and many with short contexts, beside which the one far back is long enough to be divided
        count = min(rows, step_tokens // fills)
        run = min(step_tokens // count, longest)
        while count > 1 and run >= fills:
            yield [(longest - 2, 2), *[(0, run)] * (count - 1)]
            run //= 4


def _contexts(most: int, windows: Collection[int | None]) -> list[int]:
    """Longest contexts, at least 2: one that windows hide nothing of, and one that they hide something of."""
    hiding = [window for window in windows if window is not None and window < most]
    if not hiding:
        return [max(2, min(most, _FAR))]
    # windows of different sizes are not known to any model
    return [max(2, min(hiding)), min(most, max(hiding) + _FAR)]


def warm_up(
    device: Device,
    steps: EagerSteps,
    sampler: DeviceSampler,
    spec: ModelSpec,
    windows: Collection[int | None],
    layout: KvLayout,
    *,
    step_tokens: int,
    max_num_seqs: int,
) -> None:
    """Run `warming_steps` on a block that all rows and layers share, and draw in every way. Waits for the end.

    It takes as much memory as the largest step, and gives that back.
    """
    pools = [layout.allocate(1, 1, device.torch_device)[0]] * spec.num_layers
    for step in warming_steps(spec, windows, step_tokens=step_tokens, max_num_seqs=max_num_seqs):
        rows = [RowInput(i, 0, (0,) * count, start, (), None, 0) for i, (start, count) in enumerate(step)]
        ends = [start + count for start, count in step]
        inputs = StepInputs.of(
            rows,
            [range(count - 1, count) for _, count in step],
            [numpy.zeros(-(-end // layout.block_size), numpy.int32) for end in ends],
            kv_heads=spec.num_kv_heads,
            block_size=layout.block_size,
            drawn={},
        )
        steps.run(inputs, pools)
    words = b"\xff" * (4 * -(-spec.vocab_size // 32))
    held_to_a_form = DrawExtras(allowed=lambda: words)
    for params in _DRAWN:
        for extras in (None, held_to_a_form) if params is _ALL else (None,):
            logits = torch.zeros(1, spec.vocab_size, dtype=torch.float32, device=device.torch_device)
            sampler.draw(logits, [RowInput(0, 0, (0,), 0, (), params, 0, extras)])
    device.release_cache()
