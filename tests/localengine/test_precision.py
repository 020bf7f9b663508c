"""Weights in int8: asked for, real, and never by accident."""

from __future__ import annotations

import asyncio
import logging
import weakref
from pathlib import Path

import pytest
from model_lab import GROUP_OF_THREE, GROUP_OF_TWO, random_weights
from token_lab import TinyBench

from orchestra.kernels.linear import int8_fault
from orchestra.localengine import EngineConfig, LocalEngine, SamplingParams
from orchestra.localengine.errors import EngineError
from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.gpu.selection import Machine, settle
from orchestra.localengine.models.layout import EMBEDDING
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.precision import Precision

NEEDS_INT8 = pytest.mark.skipif(int8_fault() is not None, reason=str(int8_fault()))


def test_it_is_never_the_default() -> None:
    assert EngineConfig().precision == "auto"
    assert settle(EngineConfig(), Machine()) == ("cpu", "float32")
    assert EngineConfig().strict is False


@pytest.mark.parametrize(
    ("setting", "value"), [("precision", "int4"), ("precision", None), ("precision", ["int8"]), ("strict", 1)]
)
def test_a_wrong_setting_is_named(setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{setting} must be"):
        EngineConfig(**{setting: value})  # type: ignore[arg-type]


@NEEDS_INT8
@pytest.mark.parametrize("spec", [GROUP_OF_TWO, GROUP_OF_THREE])
def test_no_matrix_is_kept_in_float32_beside_it(spec: ModelSpec) -> None:
    weights = random_weights(spec)
    matrices = {name: weakref.ref(tensor) for name, tensor in weights.items() if tensor.dim() == 2}
    runner = Runner(spec, weights, num_blocks=1, block_size=4, precision="int8")
    assert [name for name, matrix in matrices.items() if matrix() is not None] == [EMBEDDING]
    runner.close()
    assert matrices[EMBEDDING]() is None


@NEEDS_INT8
@pytest.mark.cpu_only("int8 is for CPUs")
@pytest.mark.parametrize("precision", ["float32", "int8"])
async def test_the_engine_answers_in_it(precision: Precision) -> None:
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    config = EngineConfig(block_size=4, max_num_seqs=4, step_tokens=16, precision=precision)
    async with TinyBench(config).engine as engine:
        alone = [await engine.complete(text, params) for text in ("hello", "a longer text than that", "x")]
        texts = ("hello", "a longer text than that", "x")
        together = await asyncio.gather(*(engine.complete(text, params) for text in texts))
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]


@pytest.mark.model
async def test_where_torch_has_none_it_says_so_before_anything_is_read(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr("orchestra.kernels.linear.int8_fault", lambda: "this torch has no int8")
    monkeypatch.setattr("orchestra.localengine.weights.opening.load_model", read)
    engine = LocalEngine.load(str(model_path), EngineConfig(precision="int8"))
    with pytest.raises(EngineError, match='this torch has no int8; set precision to "float32"'):
        await engine.start()


@NEEDS_INT8
@pytest.mark.model
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("model_read_once")
async def test_the_small_model_in_int8(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "orchestra.localengine.service.loading")
    config = EngineConfig(precision="int8", kv_bytes=64 << 20, threads=2)
    async with LocalEngine.load("smollm2-135m", config) as engine:
        answer = await engine.complete(
            "The days of the week are Monday, Tuesday,", SamplingParams(max_tokens=2, temperature=0)
        )
    assert answer.text == " Wednesday,"
    (said,) = [record.getMessage() for record in caplog.records]
    assert "Weights take 334 MB and the KV cache 67 MB" in said
