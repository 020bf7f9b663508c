"""Steps of the engine by all kernels together, interpreted: the GPU's runner against the CPU's."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from gpu_lab import HostDevice, weights_of
from model_lab import GREEDY, GROUP_OF_THREE, GROUP_OF_TWO, prompt, row

from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.gpu import runner as gpu_runner
from orchestra.localengine.gpu.kernels import GpuKernels, triton_kernels
from orchestra.localengine.gpu.runner import GpuRunner
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.request import SamplingParams

BLOCK = 4
WINDOWED = replace(
    GROUP_OF_THREE,
    vocab_size=61,
    num_layers=2,
    sliding_window=3,
    sliding_layers=frozenset({0}),
    attention_softcap=3.0,
    logit_softcap=4.0,
    qk_norm=True,
    post_norms=True,
    qkv_bias=True,
    norm_offset=1.0,
    activation="gelu_tanh",
)
PLAIN = replace(GROUP_OF_TWO, vocab_size=61, num_layers=1, max_position=8)  # short, so that the warm-up is
PARAMS = [GREEDY, SamplingParams(temperature=0.9, top_k=9, logprobs=2), SamplingParams(temperature=1.2)]


def kernels(dtype: torch.dtype) -> GpuKernels:
    """Triton's, for a device of one multiprocessor: interpreted programs are slow even with nothing to do."""
    whole = triton_kernels(dtype, torch.device("cpu"))
    return replace(
        whole,
        plan_decode=functools.partial(whole.plan_decode, num_sms=1),
        plan_buffer=functools.partial(whole.plan_buffer, num_sms=1),
    )


def runner_of(spec: ModelSpec, dtype: torch.dtype) -> GpuRunner:
    weights = {name: tensor.to(dtype) for name, tensor in weights_of(spec).items()}
    return GpuRunner(
        spec,
        weights,
        block_size=BLOCK,
        step_tokens=8,
        max_num_seqs=2,
        num_blocks=12,
        device=HostDevice(),
        kernels=kernels(dtype),
    )


def test_steps_of_all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_runner, "warm_up", lambda *args, **kwargs: None)  # the other test has a quicker one
    spec = WINDOWED
    gpu = runner_of(spec, torch.float32)
    cpu = Runner(spec, weights_of(spec), num_blocks=12, block_size=BLOCK)
    with torch.inference_mode():
        for layer in gpu._pool.layers:  # type: ignore[union-attr]
            layer.fill_(float("nan"))
    tables = [[7, 1, 4], [2], [0, 11]]
    ids = [prompt(n, spec, seed=n) for n in (5, 1, 2)]
    rows = [row(i, ids[i], 0, tables[i], PARAMS[i] if i < 2 else None, 5 * i) for i in range(3)]
    for _ in range(2):
        ours, its = gpu.run(rows), cpu.run(rows)
        assert [o.token_id for o in ours] == [o.token_id for o in its]
        for mine, other in zip(ours, its, strict=True):
            if other.score is not None and mine.score is not None:
                assert mine.score.logprob == pytest.approx(other.score.logprob, abs=1e-4)
                assert [t for t, _ in mine.score.top] == [t for t, _ in other.score.top]
        # then recorded: two rows of one token each
        starts = [5, 1]
        rows = [
            row(o.request_id, [o.token_id or 0], starts[o.request_id], tables[o.request_id], PARAMS[2], 3)
            for o in its
        ]


def test_halves_are_close_to_the_exact_ones() -> None:
    gpu = runner_of(PLAIN, torch.float16)
    cpu = Runner(PLAIN, weights_of(PLAIN), num_blocks=12, block_size=BLOCK)
    assert {layer.dtype for layer in gpu._pool.layers} == {torch.float16}  # type: ignore[union-attr]
    rows = [row(0, prompt(6, PLAIN), 0, [7, 1]), row(1, [5], 0, [2])]
    for ours, its in zip(gpu.logits(rows), cpu.logits(rows), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, its, atol=2e-2, rtol=0)
