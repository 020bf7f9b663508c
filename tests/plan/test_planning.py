"""What fits, and what it costs: by the engine's own arithmetic, and held against the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_lab import GROUP_OF_TWO
from tiny_gguf import TinyGguf

from orchestra.errors import InputError
from orchestra.kernels.kv_pool import KvLayout
from orchestra.lengths import Lengths
from orchestra.localengine.config import EngineConfig
from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.gpu.graphs import buckets
from orchestra.localengine.models.capacity import kv_bytes_per_token
from orchestra.localengine.quality import speeds
from orchestra.localengine.service.loading import model_opener
from orchestra.localengine.weights.opening import read_spec
from orchestra.plan import fit
from orchestra.plan.cost import Comparison, HostedPrice, compare, dollars_per_request
from orchestra.plan.device import DEVICES, Device
from orchestra.plan.footprint import Footprint
from orchestra.plan.length_mix import LengthMix
from orchestra.plan.models import SHAPES, read_model
from orchestra.plan.performance import ENOUGH
from orchestra.plan.report import Wanted, make_plan
from orchestra.plan.roofline import Roofline

CPU = Device(
    name="a CPU", memory=8 << 30, bandwidth=16e9, flops={"float32": 180e9, "int8": 300e9}, source="a test"
)


def mix_of(prompt: str, output: str) -> LengthMix:
    return LengthMix.of(Lengths.parse(prompt), Lengths.parse(output))


ALIKE = mix_of("100", "50")


def test_shapes_have_the_published_numbers_of_parameters():
    published = {
        "smollm2-135m": 134_515_008,
        "llama-3.2-1b": 1_235_814_400,
        "llama-3.2-3b": 3_212_749_824,
        "llama-3.1-8b": 8_030_261_248,
        "llama-3.1-70b": 70_553_706_496,
        "qwen3-8b": 8_190_735_360,
        "mistral-7b": 7_248_023_552,
    }
    assert {name: Footprint.of(read_model(name)[1], "bfloat16").parameters for name in SHAPES} == published


@pytest.mark.model
def test_the_small_models_shape_is_its_files(model_path):
    spec, of_file = read_model("smollm2-135m")[1], read_spec(model_path)
    same = {"rope_theta": of_file.rope_theta, "rms_norm_eps": of_file.rms_norm_eps}  # which cost nothing
    assert replace(spec, **same) == of_file


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("kv_bytes", [None, 3_000_000])
def test_it_foretells_what_the_engine_holds(tmp_path, precision, kv_bytes):
    path = str(TinyGguf().write(tmp_path / "tiny.gguf"))
    wanted = Wanted(mix=mix_of("60", "20"), precision=precision, kv_bytes=kv_bytes)
    planned = make_plan(*read_model(path), CPU, wanted, on_cpu=True)
    engine = model_opener(path)(EngineConfig(precision=precision, kv_bytes=kv_bytes, device="cpu"))
    assert isinstance(engine.runner, Runner)
    try:
        assert engine.runner.num_blocks == planned.capacity.num_blocks
        assert engine.runner.kv_bytes_per_block == planned.capacity.kv_bytes_per_block
    finally:
        engine.runner.close()
    assert planned.performance.most == engine.runner.num_blocks // 5  # of 80 tokens in blocks of 16


@pytest.mark.parametrize(
    ("kv_dtype", "dtype"),
    [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float8", torch.float8_e4m3fn)],
)
def test_a_token_takes_what_the_pool_gives_it(kv_dtype, dtype):
    spec = read_model("qwen3-8b")[1]
    layout = KvLayout(kv_heads=8, head_dim=128, block_size=16, dtype=dtype)
    assert kv_bytes_per_token(spec, "bfloat16", kv_dtype) == 36 * layout.bytes_per_token


def test_a_gpu_holds_what_is_left_of_it():
    name, spec = read_model("llama-3.1-8b")
    plan = make_plan(name, spec, DEVICES["h100"], Wanted(mix=ALIKE, precision="bfloat16"), on_cpu=False)
    small = make_plan(
        name, spec, DEVICES["h100"], Wanted(mix=ALIKE, precision="bfloat16", kv_dtype="float8"), on_cpu=False
    )
    left = (80 << 30) - plan.capacity.weight_bytes
    assert 0.8 * left < plan.capacity.kv_bytes < 0.9 * left
    assert 1.7 < small.capacity.num_blocks / plan.capacity.num_blocks < 131_072 / 67_584
    assert plan.performance.most == plan.capacity.concurrency(150)
    assert plan.performance.most <= plan.roofline.step_tokens  # a step has a token of each
    sizes = buckets(10_000)
    assert (len(sizes), sizes[-1]) == (fit._GRAPHS, fit._GRAPH_ROWS)
    with pytest.raises(InputError, match=r"too much for H100 SXM with 85.90 GB: .* b200, mi300x"):
        make_plan("x", read_model("llama-3.1-70b")[1], DEVICES["h100"], plan.wanted, on_cpu=False)


@settings(max_examples=40)
@given(st.sampled_from(sorted(DEVICES)), st.integers(1, 3000), st.integers(1, 2000), st.floats(0.001, 10))
def test_a_load_keeps_its_bounds(device, prompt, output, tpot):
    name, spec = read_model("llama-3.2-1b")
    mix = mix_of(f"{prompt}", f"{output}")
    wanted = Wanted(mix=mix, precision="bfloat16", tpot_seconds=tpot, per_hour=3.0)
    alone = make_plan(name, spec, DEVICES[device], replace(wanted, tpot_seconds=None), on_cpu=False)
    if alone.performance.operations[0].serving.seconds > tpot:
        with pytest.raises(InputError, match="a single request already has"):
            make_plan(name, spec, DEVICES[device], wanted, on_cpu=False)
        return
    plan = make_plan(name, spec, DEVICES[device], wanted, on_cpu=False)
    performance, last = plan.performance, plan.performance.operations[-1]
    batches = [operation.batch for operation in performance.operations]
    assert batches == sorted(set(batches))
    assert performance.best in performance.operations
    assert last.batch <= performance.most == plan.capacity.concurrency(prompt + output)
    assert all(operation.serving.seconds <= tpot for operation in performance.operations)
    assert performance.best.output_tokens_per_second >= ENOUGH * last.output_tokens_per_second * (1 - 1e-9)
    assert performance.most == performance.at_p50 == performance.at_p95
    dollars = [plan.dollars(operation) for operation in performance.operations]
    assert dollars == pytest.approx(sorted(dollars, reverse=True))  # more at once is never dearer
    if not isinstance(plan.doubled, str):
        assert plan.doubled.most <= performance.most
        assert plan.doubled.best.output_tokens_per_second <= performance.best.output_tokens_per_second / ENOUGH


def test_what_is_recommended_keeps_to_the_engines_target():
    name, spec = read_model("smollm2-135m")
    slow = Device(
        name="slow", memory=8 << 30, bandwidth=6e9, flops={"float32": 120e9}, source="made up", kv_bandwidth=1e9
    )
    wanted = Wanted(mix=ALIKE, precision="float32")
    performance = make_plan(name, spec, slow, wanted, on_cpu=True).performance
    assert performance.target_seconds == 0.15
    assert performance.best.serving.seconds <= 0.15 < performance.operations[-1].serving.seconds
    asked = make_plan(name, spec, slow, replace(wanted, tpot_seconds=1.0), on_cpu=True).performance
    assert performance.best.batch < asked.best.batch
    assert 0.15 < asked.best.serving.seconds <= 1.0
    crawling = replace(slow, bandwidth=1e9)
    alone = make_plan(name, spec, crawling, wanted, on_cpu=True).performance
    assert (alone.best.batch, alone.best.serving.seconds > 0.15) == (1, True)


def test_what_does_not_go_together_is_refused():
    name, spec = read_model("mistral-7b")

    def refused(device: Device, *, on_cpu: bool = False, **changes: object) -> str:
        wanted = replace(Wanted(mix=ALIKE, precision="bfloat16"), **changes)
        with pytest.raises(InputError) as error:
            make_plan(name, spec, device, wanted, on_cpu=on_cpu)
        return str(error.value)

    assert "not with int8" in refused(DEVICES["h100"], precision="int8")
    assert "cannot keep keys and values in float8" in refused(DEVICES["a100"], kv_dtype="float8")
    assert "keys and values in float32" in refused(CPU, on_cpu=True, precision="float32", kv_dtype="float16")
    assert "it does not fit" in refused(CPU, on_cpu=True, precision="float32")  # 29 GB into 8
    large = replace(CPU, memory=30 << 30)
    assert "with a KV cache of" in refused(large, on_cpu=True, precision="float32", kv_bytes=8 << 30)
    assert "40,050 tokens on average" in refused(DEVICES["h100"], mix=mix_of("40000", "50"))
    assert "a single request already has" in refused(DEVICES["h100"], tpot_seconds=1e-3)
    assert "above 0" in refused(DEVICES["h100"], per_hour=0.0)
    assert "kv_bytes is 1000.00 GB" in refused(DEVICES["h100"], kv_bytes=10**12)


def test_doubled_prompts_may_not_fit():
    name, spec = read_model("mistral-7b")
    mix = mix_of("20000", "10")
    plan = make_plan(name, spec, DEVICES["h100"], Wanted(mix=mix, precision="bfloat16"), on_cpu=False)
    assert "the longest that fits has 32,768" in plan.doubled
    assert plan.as_json()["doubled_prompts"] is None


def test_costs_by_hand():
    own = dollars_per_request(3.6, 2.0)  # a tenth of a cent a second, for two requests
    assert own == pytest.approx(0.0005)
    price = HostedPrice(input=0.5, output=2.0, batch_discount=0.5)
    comparison = compare(own, price, 1000, 250)
    assert (comparison.hosted, comparison.batch) == pytest.approx((0.001, 0.0005))
    assert comparison.worth_from == pytest.approx(0.5)
    assert Comparison(own=2, hosted=3, batch=1).worth_from_batch is None
    for wrong in ({"input": -1.0}, {"output": float("nan")}, {"batch_discount": 1.5}):
        with pytest.raises(InputError):
            HostedPrice(**({"input": 1.0, "output": 1.0} | wrong))


@pytest.mark.parametrize(("precision", "overlap"), [("float32", 0.25), ("int8", -0.5)])
def test_what_is_measured_foretells_what_was_measured(monkeypatch, precision, overlap):
    """Each time that the measurements would take on a machine of known speeds gives those speeds back."""
    spec = replace(GROUP_OF_TWO, num_heads=8, hidden_size=1024, intermediate_size=2048)
    model = Footprint.of(spec, precision)
    machine = Roofline(
        model=model,
        device=Device(
            name="a machine",
            memory=1,
            bandwidth=10e9,
            flops={precision: 200e9},
            source="a test",
            kv_bandwidth=3e9,
            overlap=overlap,
            step_seconds=0.01,
            row_seconds=0.001,
        ),
        dtype=precision,
        step_tokens=256,
    )
    idle = replace(model, step_weight_bytes=0, token_flops=0, head_flops=0, score_flops=0)
    values, head = model.token_flops / 2, model.head_flops / 2
    layers = replace(
        model, step_weight_bytes=model.step_weight_bytes * values / (values + head), head_flops=0, score_flops=0
    )
    asked = []

    def typical(passes):
        for run in passes:
            run()
        asked.append(len(passes))
        if len(passes) == 1:  # with many rows
            return [model.token_flops * speeds._MANY / machine.device.flops[precision]]
        if len(passes) == 4:
            lines = [replace(machine, model=one) for one in (layers, idle)]
            return [line.decode(batch, speeds._SHORT).seconds for line in lines for batch in (1, speeds._SOME)]
        line = replace(machine, model=idle)
        cases = ((1, speeds._SHORT), (speeds._SOME, speeds._SHORT), (speeds._SOME, speeds._LONG))
        return [line.decode(batch, context).seconds for batch, context in cases]

    monkeypatch.setattr(speeds, "_typical", typical)
    found = speeds.measure_speeds(spec, precision)
    assert sorted(asked) == [1, 3, 4]
    assert found.bandwidth == pytest.approx(10e9, rel=1e-4)
    assert found.flops == pytest.approx(200e9, rel=1e-6)
    assert found.overlap == pytest.approx(overlap, abs=1e-3)
    assert found.kv_bandwidth == pytest.approx(3e9)
    assert found.step_seconds == pytest.approx(0.01)
    assert found.row_seconds == pytest.approx(0.001)
    assert found.threads == torch.get_num_threads()


def test_a_part_of_a_large_model_stands_for_it():
    spec = read_model("llama-3.1-70b")[1]
    part = speeds._part(spec, speeds._MATRIX_BYTES // 4)
    assert 0.5 < part.num_layers * speeds._layer_values(part) * 4 / speeds._MATRIX_BYTES <= 1
    assert part.hidden_size / part.intermediate_size == spec.hidden_size / spec.intermediate_size
    assert part.num_heads / part.num_kv_heads == spec.num_heads / spec.num_kv_heads
