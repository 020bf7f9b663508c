"""The roofline: what must hold of any model on any device, and one model worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import InputError
from orchestra.plan.device import DEVICES, Device, find_device
from orchestra.plan.footprint import Footprint
from orchestra.plan.models import SHAPES, read_model
from orchestra.plan.roofline import Roofline

MODELS = {name: Footprint.of(read_model(name)[1], "bfloat16") for name in SHAPES}


def roofline(model: Footprint, device: Device, step_tokens: int = 10**9) -> Roofline:
    return Roofline(model=model, device=device, dtype="bfloat16", step_tokens=step_tokens)


@st.composite
def rooflines(draw: st.DrawFn, perfect: bool = False) -> Roofline:
    device = DEVICES[draw(st.sampled_from(sorted(DEVICES)))]
    if not perfect:
        device = replace(
            device,
            overlap=draw(st.floats(0, 1)),
            kv_bandwidth=draw(st.none() | st.floats(1e9, 1e13)),
            step_seconds=draw(st.floats(0, 0.1)),
            row_seconds=draw(st.floats(0, 0.01)),
        )
    return roofline(MODELS[draw(st.sampled_from(sorted(MODELS)))], device, draw(st.sampled_from([256, 10**9])))


batches, contexts = st.integers(1, 5000), st.floats(0, 1e5)


@given(rooflines(), batches, contexts, st.floats(0, 5000), st.floats(1, 5000))
def test_more_takes_longer_and_more_at_once_yields_more(line, batch, context, prompt, output):
    step = line.serving(batch, context, prompt, output)
    for larger in (
        line.serving(batch + 1, context, prompt, output),
        line.serving(batch, context + 100, prompt, output),
        line.serving(batch, context, prompt + 100, output),
        replace(line, device=line.device.reaching(0.9)).serving(batch, context, prompt, output),
    ):
        assert larger.seconds >= step.seconds * (1 - 1e-12)
    assert line.serving(batch + 1, context, prompt, output).tokens_per_second >= step.tokens_per_second * (
        1 - 1e-9
    )
    assert step.seconds >= line.decode(batch, context).seconds * (1 - 1e-12)
    parts = step.attention + step.other
    assert max(step.weights, step.products) <= step.matrices <= step.weights + step.products
    assert step.seconds == pytest.approx(step.matrices + parts)


@given(rooflines(perfect=True), contexts)
def test_a_step_of_one_request_is_bound_by_memory(line, context):
    assert line.decode(1, context).bound in ("weights", "kv")


@given(rooflines(perfect=True), contexts)
def test_the_regions_meet_where_it_says(line, context):
    line = replace(line, step_tokens=10**9)
    crossing = line.crossing(context)
    if crossing is None:
        assert all(line.decode(batch, context).bound != "compute" for batch in (1, 100, 10**4, 10**8))
    else:
        assert crossing > 1
        assert line.decode(crossing, context).bound == "compute"
        assert line.decode(crossing - 1, context).bound != "compute"
        assert line.decode(100 * crossing, context).bound == "compute"


def test_llama_3_1_8b_on_an_h100_by_hand():
    model, h100 = MODELS["llama-3.1-8b"], DEVICES["h100"]
    table, norms = 128_256 * 4096, (2 * 32 + 1) * 4096
    matrices = 8_030_261_248 - table - norms  # the output projection among them
    assert model.parameters == 8_030_261_248
    assert model.weight_bytes == 2 * (matrices + table) + 4 * norms
    assert model.step_weight_bytes == 2 * matrices + 4 * norms
    assert model.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2  # keys and values, layers, heads, numbers, bytes
    assert model.token_flops + model.head_flops == 2 * matrices
    assert model.score_flops == 4 * 32 * 128

    line = roofline(model, h100)
    # a number is read in 2 bytes, and costs 2 operations for each token
    assert line.ridge == pytest.approx(989.4 / 3.350, rel=1e-3)
    assert line.crossing(100) == 296
    step = line.decode(64, 999)
    assert step.weights == pytest.approx(15.011e9 / 3.350e12, rel=1e-3)
    assert step.attention == pytest.approx(64 * 1000 * 131_072 / 3.350e12)
    assert step.products == pytest.approx(64 * 15.009e9 / 989.4e12, rel=1e-3)
    assert step.seconds == step.weights + step.attention
    assert step.bound == "weights"
    assert line.decode(128, 999).bound == "kv"
    # a prompt of 1,000 tokens computes longer than it reads: the layers for all of it, the head once
    attended = 4 * 32 * 128 * 32 * 1000 * 501
    flops = 1000 * 2 * (matrices - table) + 2 * table + attended
    assert line.first_token(1000) == pytest.approx(flops / 989.4e12)


def test_steps_of_few_tokens_read_the_weights_more_often():
    model, h100 = MODELS["llama-3.1-8b"], DEVICES["h100"]
    short, whole = roofline(model, h100, 128), roofline(model, h100)
    assert short.first_token(512) == pytest.approx(
        4 * model.step_weight_bytes / 3.350e12 + 512 * short._scores(256)
    )
    assert short.first_token(512) > 1.5 * whole.first_token(512)


def test_a_window_is_all_that_is_read():
    spec = replace(read_model("mistral-7b")[1], sliding_window=100, sliding_layers=frozenset(range(16)))
    model = Footprint.of(spec, "bfloat16")
    assert model.kv_bytes_per_token == MODELS["mistral-7b"].kv_bytes_per_token  # it is kept, though
    assert model.attended(49) == 32 * 50
    assert model.attended(999) == 16 * 1000 + 16 * 100
    assert model.kv_bytes(999) == 2 * 8 * 128 * 2 * 16 * 1100


def test_devices_are_found_as_people_write_them():
    for name in ("RTX 4090", "rtx4090", "rtx-4090", "4090", "RTX_4090"):
        assert find_device(name) is DEVICES["rtx-4090"]
    assert find_device("H100") is DEVICES["h100"]
    with pytest.raises(InputError, match="did you mean h200"):
        find_device("h201")
    assert all(device.source.startswith("https://www.") for device in DEVICES.values())


def test_half_of_its_peak():
    half = DEVICES["h100"].reaching(0.5)
    assert (half.bandwidth, half.flops["bfloat16"], half.share) == (1.675e12, 494.7e12, 0.5)
    for share in (0, 1.1, float("nan")):
        with pytest.raises(InputError, match="above 0 and at most 1"):
            half.reaching(share)
