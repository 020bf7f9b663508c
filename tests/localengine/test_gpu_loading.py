"""Where an engine runs, how a model gets there, and how much of the memory its KV pool gets."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from devices import a_gpu_is_found, poison, running_on
from gpu_lab import FakeDevice, OnDevice, fake_kernels
from hub_lab import make_folder, make_model
from model_lab import GROUP_OF_TWO, prompt, row
from tiny_gguf import TinyGguf
from torch import Tensor

from orchestra.localengine import LocalEngine, SamplingParams
from orchestra.localengine.config import EngineConfig
from orchestra.localengine.errors import EngineError, ModelFileError
from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.gpu.graphs import buckets
from orchestra.localengine.gpu.loading import load_on_gpu
from orchestra.localengine.gpu.placing import DevicePlacing
from orchestra.localengine.gpu.selection import Machine, settle
from orchestra.localengine.gpu.sizing import DeviceMemory
from orchestra.localengine.models.capacity import kv_bytes_per_token, weight_bytes, weight_values
from orchestra.localengine.settled_config import SettledConfig
from orchestra.localengine.weights.opening import load_model

NONE = Machine()
TWO = Machine(gpus=(None, None), triton=True)
OLD = Machine(gpus=("T4 is sm_75; the kernels want sm_80 or newer", None), triton=True)
BARE = Machine(gpus=(None,), triton=False)


@pytest.mark.parametrize(
    ("asked", "machine", "settled"),
    [
        ({}, NONE, ("cpu", "float32")),
        ({}, BARE, ("cpu", "float32")),
        ({}, TWO, ("cuda:0", "bfloat16")),
        ({}, OLD, ("cuda:1", "bfloat16")),
        ({"device": "cpu"}, TWO, ("cpu", "float32")),
        ({"device": "cuda"}, OLD, ("cuda:1", "bfloat16")),
        ({"device": "cuda:1", "precision": "float16"}, TWO, ("cuda:1", "float16")),
        ({"precision": "float32"}, TWO, ("cuda:0", "float32")),
        ({"precision": "int8"}, TWO, ("cpu", "int8")),
        ({"strict": True}, TWO, ("cpu", "float32")),
        ({"kv_dtype": "float8"}, TWO, ("cuda:0", "bfloat16")),
    ],
)
def test_the_device_is_a_gpu_where_one_can_do_what_is_asked(
    asked: dict[str, object], machine: Machine, settled: tuple[str, str]
) -> None:
    assert settle(EngineConfig(**asked), machine) == settled  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "machine", "message"),
    [
        ({"device": "cuda"}, NONE, r"'cuda', and torch sees no GPU: install a torch .*, or set device to \"cpu\""),
        ({"device": "cuda"}, BARE, r"need Triton: pip install"),
        ({"device": "cuda:2"}, TWO, r"there are 2 GPUs here"),
        ({"device": "cuda:0"}, OLD, r"T4 is sm_75"),
        ({"device": "cuda", "precision": "int8"}, TWO, r'precision "int8" is for CPUs'),
        ({"device": "cuda", "strict": True}, TWO, r"strict is for CPUs"),
        ({"precision": "bfloat16"}, NONE, r"'bfloat16' is for GPUs: torch sees no GPU"),
        ({"device": "cpu", "precision": "float16"}, TWO, r"'float16' is for GPUs; set it to"),
        ({"kv_dtype": "float8"}, NONE, r"kv_dtype 'float8' is for GPUs: torch sees no GPU.*; set it to \"auto\""),
        ({"device": "cpu", "kv_dtype": "float8"}, TWO, r"kv_dtype 'float8' is for GPUs; set it to \"auto\""),
        ({"strict": True, "kv_dtype": "float8"}, TWO, r"'float8' is for GPUs, and strict for CPUs; set it to"),
    ],
)
def test_what_does_not_go_together_says_why(asked: dict[str, object], machine: Machine, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        settle(EngineConfig(**asked), machine)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "", None, 0])
def test_a_device_that_is_none(device: object) -> None:
    with pytest.raises(ValueError, match="device must be"):
        EngineConfig(device=device)  # type: ignore[arg-type]


def test_steps_are_recorded_for_few_sizes_that_are_not_far_apart() -> None:
    assert buckets(1) == [1]
    assert buckets(16) == [1, 2, 4, 8, 16]
    assert buckets(17)[-1] == 24
    assert buckets(10_000)[-1] == 256
    assert len(buckets(256)) == 13
    for rows in range(8, 257):
        assert rows <= buckets(rows)[-1] <= 1.5 * rows + 4, rows
    with pytest.raises(ValueError, match="at least one row"):
        buckets(0)


def test_the_pool_gets_what_steps_leave() -> None:
    memory = DeviceMemory(free=10**9, total=2 * 10**9, step_peak=10**8, decode_peak=10**7, graphs=3)
    graphs = 10**7 + 3 * (16 << 20)
    assert memory.kv_bytes == 900_000_000 - 10**8 - graphs
    assert memory.blocks(1000) == memory.kv_bytes // 1000
    assert memory.blocks(1000, kv_bytes=50_500) == 50
    with pytest.raises(ValueError, match=r"kv_bytes is 900 MB, and .* are left"):
        memory.blocks(1000, kv_bytes=9 * 10**8)
    with pytest.raises(ValueError, match=r"a KV cache of 500 B holds no block, which takes 1 KB: raise kv_bytes"):
        memory.blocks(1000, kv_bytes=500)
    with pytest.raises(ValueError, match="no block of the KV cache fits"):
        DeviceMemory(free=10**8, total=10**9, step_peak=10**8, decode_peak=0, graphs=0).blocks(1000)
    assert memory.describe() == (
        "Of 2.00 GB on the device 1.00 GB were free beside the weights. A step takes up to 100 MB, and 3 recorded "
        "ones about 60 MB."
    )


def test_halves_take_half() -> None:
    assert kv_bytes_per_token(GROUP_OF_TWO, "bfloat16") * 2 == kv_bytes_per_token(GROUP_OF_TWO)
    norms = 5 * 64
    assert weight_bytes(GROUP_OF_TWO, "float16") == 2 * weight_values(GROUP_OF_TWO) + 2 * norms


def sizes(config: SettledConfig) -> tuple[int, int, int]:
    return config.max_num_seqs, config.step_tokens, config.interactive_slots


def test_what_is_left_open_suits_the_device() -> None:
    def on_gpu(gib: int, vocab_size: int = 32_000, **given: int) -> tuple[int, int, int]:
        memory = gib << 30
        return sizes(SettledConfig.on_gpu(EngineConfig(**given), free=memory, total=memory, vocab_size=vocab_size))

    assert sizes(SettledConfig.on_cpu(EngineConfig())) == (16, 256, 2)
    assert sizes(SettledConfig.on_cpu(EngineConfig(max_num_seqs=1))) == (1, 256, 0)
    assert sizes(SettledConfig.on_cpu(EngineConfig(max_num_seqs=300))) == (300, 300, 2)
    assert on_gpu(80) == (256, 8192, 32)
    assert on_gpu(24) == (256, 2048, 32)
    # the logits of a step, three times over, take no more than an eighth
    assert [on_gpu(gib, 128_256)[1] for gib in (80, 24, 8, 4, 0)] == [4096, 2048, 512, 256, 256]
    assert on_gpu(80, step_tokens=100) == (100, 100, 12)
    assert on_gpu(80, max_num_seqs=8, interactive_slots=0) == (8, 8192, 0)
    assert on_gpu(0, max_num_seqs=400) == (400, 400, 50)
    kept = [on_gpu(80, max_num_seqs=slots)[2] for slots in (1, 2, 3, 7)]
    assert kept == [0, 1, 2, 2], "who waits for an answer finds a slot on a small engine too"
    with pytest.raises(ValueError, match="kv_dtype must be one of auto, float8, not 'fp8'"):
        EngineConfig(kv_dtype="fp8")  # type: ignore[arg-type]


def test_a_gpu_that_has_no_float8_is_told_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    monkeypatch.setattr(FakeDevice, "torch_device", torch.device("cuda"))
    with pytest.raises(EngineError, match=r'A100 is sm_80, .* want sm_89 or newer: set kv_dtype to "auto"'):
        load_on_gpu(
            tmp_path / "none",
            torch.device("cuda"),
            EngineConfig(kv_dtype="float8"),
            "bfloat16",
            device=FakeDevice(),
        )


async def test_an_engine_tells_what_its_device_chose(tmp_path: Path) -> None:
    path = TinyGguf().write(tmp_path / "tiny.gguf")
    config = EngineConfig(device="cuda", precision="float32", kv_dtype="float8", step_tokens=200, kv_bytes=1 << 20)
    with running_on("lab"), a_gpu_is_found():
        async with LocalEngine.load(str(path), config) as engine:
            stats = engine.stats()
            assert (stats["device"], stats["slots"], stats["step_tokens"]) == ("cuda:0", 200, 200)
            assert engine._worker is not None
            assert engine._worker.config.interactive_slots == 25
            answer = await engine.complete([5, 6, 7], SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    assert len(answer.token_ids) == 4


class Watched(FakeDevice):
    """Knows the largest piece of page-locked memory, and how many lay filled at once."""

    largest = 0

    def pinned(self, size: int) -> Tensor:
        self.largest = max(self.largest, size)
        return super().pinned(size)


def test_weights_go_from_the_files_to_the_device_in_pieces(tmp_path: Path) -> None:
    model = make_model("llama").to(torch.bfloat16)
    folder = make_folder(model, tmp_path / "tiny")
    device = Watched()
    with device.active():
        placing = DevicePlacing(device, "bfloat16", piece_bytes=1000)
        files = load_model(folder, placing)
        assert device.largest == 1000
        pieces = sum(-(-tensor.numel() * 2 // 1000) for tensor in model.state_dict().values())
        assert device.waits == pieces - 2, "two pieces are under way at most"
    for name, tensor in model.state_dict().items():
        there = files.weights[name]
        assert isinstance(there, OnDevice)
        assert there.held.dtype == (torch.float32 if name.endswith("norm.weight") else torch.bfloat16)
        assert torch.equal(there.held, tensor.to(there.held.dtype)), name


def test_a_quantised_file_is_placed_tensor_by_tensor(tmp_path: Path) -> None:
    path = TinyGguf().write(tmp_path / "tiny.gguf")
    device = FakeDevice()
    with device.active():
        placed = load_model(path, DevicePlacing(device, "float16")).weights
    for name, tensor in load_model(path).weights.items():
        assert torch.equal(placed[name].held, tensor.to(placed[name].held.dtype)), name  # type: ignore[attr-defined]


def test_what_cannot_be_placed_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    tiny = TinyGguf()
    tiny.weights["blk.1.ffn_up.weight"] = numpy.full((96, 64), 7e4, numpy.float32)  # float16 ends at 65,504
    path = tiny.write(tmp_path / "tiny.gguf")
    device = FakeDevice()
    with (
        device.active(),
        pytest.raises(ModelFileError, match=r"tiny\.gguf.*layers\.1\.mlp\.up_proj.* not finite in float16"),
    ):
        load_model(path, DevicePlacing(device, "float16"))
    small = FakeDevice(free=10_000)
    with small.active(), pytest.raises(ModelFileError, match=r"GPU's memory and 10 KB are free"):
        load_model(path, DevicePlacing(small, "float16"))


def test_a_model_is_loaded_and_its_pool_sized(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "orchestra.localengine.gpu.loading")
    path = TinyGguf().write(tmp_path / "tiny.gguf")
    config = EngineConfig(block_size=4, step_tokens=24, max_num_seqs=3, interactive_slots=1)
    device = FakeDevice(free=1 << 28)
    where = torch.device("cuda", 0)
    files, runner, settled = load_on_gpu(
        path, where, config, "float32", device=device, kernels=fake_kernels(device)
    )
    assert files.weights == {}
    assert settled == SettledConfig.on_cpu(config), "what is set stays so"
    assert runner.memory is not None
    assert runner.memory.step_peak > runner.memory.decode_peak // 2 > 0
    assert runner.num_blocks == runner.memory.kv_bytes // runner.kv_bytes_per_block
    assert "on cuda:0 in float32: Weights take" in caplog.text
    assert "A step takes up to" in caplog.text
    exact = load_model(path)
    cpu = Runner(exact.spec, exact.weights, num_blocks=8, block_size=4)
    rows = [row(0, [i % 200 for i in prompt(9)], 0, [1, 0, 3]), row(1, [5], 0, [7])]
    for ours, its in zip(runner.logits(rows), cpu.logits(rows), strict=True):
        torch.testing.assert_close(ours, its, atol=1e-4, rtol=0)

    # in float8 more than twice as many tokens fit, and the logits are much the same
    kept = replace(config, kv_dtype="float8")
    _, in_float8, _ = load_on_gpu(path, where, kept, "float32", device=device, kernels=fake_kernels(device))
    assert in_float8.kv_bytes_per_block == 4 * kv_bytes_per_token(exact.spec, "float32", "float8")
    assert in_float8.num_blocks > 2.5 * runner.num_blocks
    poison(in_float8, range(9))
    for _ in range(2):  # the second time from a context that is kept already, by a recorded step
        its, ours = cpu.logits(rows), in_float8.logits(rows)
        for one, other in zip(ours, its, strict=True):
            error = (one - other).square().mean().sqrt() / other.std()
            assert 1e-4 < error < 0.2, "another's key, value or scale makes it more than 1"
        rows = [row(0, [7], 9, [1, 0, 3]), row(1, [8], 1, [7])]
    assert len(device.replayed) == 1

    small = FakeDevice(free=1 << 22)
    with pytest.raises(EngineError, match="no block of the KV cache fits"):
        load_on_gpu(path, where, config, "float32", device=small, kernels=fake_kernels(small))
    short = FakeDevice()
    short.fails_at = 40
    with pytest.raises(EngineError, match=r"too small for .* and a step of 24 tokens: choose a smaller model"):
        load_on_gpu(path, where, config, "float32", device=short, kernels=fake_kernels(short))
