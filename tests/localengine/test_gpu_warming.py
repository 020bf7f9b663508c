"""What is launched before the first request: all that one could launch, by the plans of the real kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest
import torch
from gpu_lab import GPU, FakeDevice, fake_kernels, on_device, weights_of
from model_lab import GROUP_OF_TWO

from orchestra.kernels.attention import decode_plan, extend_plan
from orchestra.localengine.gpu.eager import EagerSteps
from orchestra.localengine.gpu.inputs import StepInputs
from orchestra.localengine.gpu.runner import GpuRunner
from orchestra.localengine.gpu.sampling import DeviceSampler
from orchestra.localengine.gpu.warming import Step, warming_steps
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.step import DrawExtras, RowInput

BLOCK = 16


def spec_of(heads: int, kv_heads: int, window: int | None, most: int) -> ModelSpec:
    return replace(
        GROUP_OF_TWO, num_heads=heads, num_kv_heads=kv_heads, sliding_window=window, max_position=most, head_dim=16
    )


def launched(step: Step, spec: ModelSpec, windows: Sequence[int | None]) -> set[tuple[Any, ...]]:
    """What tells apart the kernels of attention that are compiled for a step."""
    rows = [RowInput(i, 0, (0,) * count, start, (), None, 0) for i, (start, count) in enumerate(step)]
    tables = [numpy.zeros(-(-(start + count) // BLOCK), numpy.int32) for start, count in step]
    inputs = StepInputs.of(
        rows, [range(0)] * len(rows), tables, kv_heads=spec.num_kv_heads, block_size=BLOCK, drawn={}
    )
    plans = SimpleNamespace(plan_decode=decode_plan.plan_decode, plan_extend=extend_plan.plan_extend)
    model = SimpleNamespace(spec=spec, windows=frozenset(windows))
    pool = torch.empty(1, spec.num_kv_heads, BLOCK, 2 * spec.head_dim, dtype=torch.bfloat16)
    found: set[tuple[Any, ...]] = set()
    for plan in EagerSteps(*cast(Any, (None, plans, model, None)))._plans(inputs, pool).values():
        if plan.decode is not None:
            found |= {("decode",)} | ({("decode merge",)} if len(plan.decode.merges) else set())
        if (extend := plan.extend) is not None:
            rows_of_a_tile = extend.launch.blocks["BLOCK_M"]
            found.add(("extend", rows_of_a_tile, extend.window is not None))
            found |= {("merge", rows_of_a_tile)} if len(extend.merges) else set()
    return found


def any_step(random: Random, most: int, step_tokens: int, max_num_seqs: int) -> Step:
    """Rows of one token, short and long runs, with short and long contexts."""
    step: list[tuple[int, int]] = []
    left, typical = step_tokens, random.choice([1, 2, 3, 8, 40, 400, most])
    for _ in range(random.choice([1, 2, random.randint(1, max_num_seqs), max_num_seqs])):
        if left and len(step) < max_num_seqs:
            count = min(left, most, random.choice([1, 2, typical, random.randint(1, typical)]))
            step.append((random.choice([0, most - count, random.randint(0, most - count)]), count))
            left -= count
    return step


@pytest.mark.parametrize(
    ("heads", "kv_heads", "windows", "most", "step_tokens", "max_num_seqs", "sms", "all_of_them"),
    [
        (32, 8, [None], 131072, 2048, 64, 132, True),
        (32, 8, [None], 4096, 256, 16, 132, False),  # too few tokens and rows for the largest tiles
        (32, 8, [4096], 32768, 8192, 64, 132, True),
        (8, 4, [None, 512], 8192, 512, 100, 132, True),
        (32, 32, [None, 100], 2000, 300, 1, 16, False),
        (9, 3, [1], 64, 40, 4, 20, False),
        (16, 1, [700, None], 600, 3, 3, 132, False),  # a window that hides nothing
        (4, 2, [None], 512, 1, 1, 132, False),
    ],
)
def test_no_step_launches_what_was_not_launched_before(
    monkeypatch: pytest.MonkeyPatch,
    heads: int,
    kv_heads: int,
    windows: list[int | None],
    most: int,
    step_tokens: int,
    max_num_seqs: int,
    sms: int,
    all_of_them: bool,
) -> None:
    for module in (decode_plan, extend_plan):
        monkeypatch.setattr(module, "arch_of", lambda device: "sm_90")
        monkeypatch.setattr(module, "_SMS", sms)
    spec = spec_of(heads, kv_heads, next(filter(None, windows), None), most)
    steps = list(warming_steps(spec, windows, step_tokens=step_tokens, max_num_seqs=max_num_seqs))
    assert len(steps) <= 14
    warmed = set()
    for step in steps:
        assert sum(count for _, count in step) <= step_tokens
        assert all(start >= 0 and count >= 1 and start + count <= most for start, count in step)
        warmed |= launched(step, spec, windows)
    if all_of_them:
        hiding = {False} if windows == [None] else {False, True}
        assert warmed == {
            ("decode",),
            ("decode merge",),
            *(("extend", rows, hides) for rows, hides in product((16, 64, 128), hiding)),
            *(("merge", rows) for rows in (16, 64, 128)),
        }
    random = Random(7)
    for _ in range(60):
        step = any_step(random, most, step_tokens, max_num_seqs)
        assert launched(step, spec, windows) <= warmed, step


class Recording:
    """The kernels of sampling, which tells what tells their launches apart."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels
        self.seen: set[tuple[Any, ...]] = set()
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.names.add(name)
            if name in ("greedy", "sample", "log_probabilities", "forbid"):
                there: Mapping[str, bool] = {key: value.device == GPU for key, value in kwargs.items()}
                self.seen.add((name, "min_p" in there, name == "sample" and there["top_p"]))
            return getattr(self._kernels, name)(*args, **kwargs)

        return called


def test_no_draw_launches_what_was_not_launched_before() -> None:
    spec = replace(GROUP_OF_TWO, max_position=64)
    device = FakeDevice()
    kernels = fake_kernels(device)
    recording = Recording(kernels.sampling)
    GpuRunner(
        spec,
        on_device(weights_of(spec)),
        block_size=4,
        step_tokens=16,
        max_num_seqs=2,
        num_blocks=3,  # given, so that nothing is measured
        device=device,
        kernels=replace(kernels, sampling=cast(Any, recording)),
    )
    warmed, recording.seen = recording.seen, set()
    assert len(warmed) == 7
    sampler = DeviceSampler(device, cast(Any, recording))
    held = DrawExtras(allowed=lambda: b"\xff" * 40)
    for heat, top_k, top_p, min_p, told in product(
        (0.0, 1.5), (0, 4), (1.0, 0.5), (0.0, 0.2), (None, "raw", "processed")
    ):
        params = SamplingParams(
            temperature=heat,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            logprobs=1 if told else None,
            logprobs_mode=cast(Any, told or "raw"),
        )
        with device.active():
            logits = torch.zeros(2, spec.vocab_size, device=GPU)
            sampler.draw(logits, [RowInput(i, 0, (0,), 0, (), params, 0, held) for i in range(2)])
    assert recording.seen == warmed


def test_what_a_step_takes_is_measured_with_all_that_a_draw_may_take() -> None:
    spec = replace(GROUP_OF_TWO, max_position=64)
    measured: list[set[str]] = []

    class Measuring(FakeDevice):
        def peak(self, compute: Callable[[], None]) -> int:
            recording.names.clear()
            peak = super().peak(compute)
            measured.append(set(recording.names))
            return peak

    device = Measuring(free=1 << 26)
    kernels = fake_kernels(device)
    recording = Recording(kernels.sampling)
    runner = GpuRunner(
        spec,
        on_device(weights_of(spec)),
        block_size=4,
        step_tokens=16,
        max_num_seqs=2,
        device=device,
        kernels=replace(kernels, sampling=cast(Any, recording)),
    )
    assert runner.memory is not None
    largest, decode = measured
    assert largest == {"add_bias", "penalize", "sample", "log_probabilities", "rank_tokens"}
    assert decode == set()
