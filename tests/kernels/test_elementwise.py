import math

import pytest
import torch

from orchestra.kernels.activation import reference as activation_reference
from orchestra.kernels.activation import torch_cpu as activation_cpu
from orchestra.kernels.norm import reference as norm_reference
from orchestra.kernels.norm import torch_cpu as norm_cpu

ROWS = [1, 3, 8, 65]


@pytest.mark.parametrize("module", [norm_reference, norm_cpu])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("hidden", [64, 576, 1000])
def test_rms_norm_against_float64(module: object, rows: int, hidden: int) -> None:
    x, weight = torch.randn(rows, hidden) * 3, torch.randn(hidden)
    x[0] = 0  # eps alone keeps this finite
    before = x.clone()
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    y = module.rms_norm(x, weight, 1e-5)  # type: ignore[attr-defined]
    torch.testing.assert_close(y.double(), exact, atol=1e-5, rtol=1e-5)
    assert torch.equal(x, before)


@pytest.mark.parametrize("module", [norm_reference, norm_cpu])
def test_add_rms_norm_adds_in_place_and_normalises_the_sum(module: object) -> None:
    x, residual, weight = torch.randn(5, 64), torch.randn(5, 64), torch.randn(64)
    total, x_before = x + residual, x.clone()
    y = module.add_rms_norm(x, residual, weight, 1e-6)  # type: ignore[attr-defined]
    assert torch.equal(residual, total)
    assert torch.equal(x, x_before)
    torch.testing.assert_close(y, norm_reference.rms_norm(total, weight, 1e-6), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("module", [activation_reference, activation_cpu])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [8, 96, 1001])
def test_silu_mul_against_float64(module: object, rows: int, width: int) -> None:
    x = torch.randn(rows, 2 * width) * 4
    x[0, 0], x[0, 1] = -200.0, 200.0
    before = x.clone()
    gate, up = x.double().chunk(2, -1)
    exact = gate / (1 + torch.exp(-gate)) * up
    y = module.silu_mul(x)  # type: ignore[attr-defined]
    assert y.shape == (rows, width)
    torch.testing.assert_close(y.double(), exact, atol=1e-5, rtol=1e-5)
    assert torch.equal(x, before)


@pytest.mark.parametrize("module", [activation_reference, activation_cpu])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [8, 96, 1001])
def test_gelu_tanh_mul_against_float64(module: object, rows: int, width: int) -> None:
    x = torch.randn(rows, 2 * width) * 4
    x[0, 0], x[0, 1] = -200.0, 200.0
    before = x.clone()
    gate, up = x.double().chunk(2, -1)
    exact = 0.5 * gate * (1 + torch.tanh((2 / math.pi) ** 0.5 * (gate + 0.044715 * gate**3))) * up
    y = module.gelu_tanh_mul(x)  # type: ignore[attr-defined]
    assert y.shape == (rows, width)
    torch.testing.assert_close(y.double(), exact, atol=1e-5, rtol=1e-5)
    assert torch.equal(x, before)


@pytest.mark.usefixtures("two_threads")
def test_rows_have_the_same_bits_alone_and_among_others() -> None:
    x, weight, gate_up = torch.randn(70, 576), torch.randn(576), torch.randn(70, 3072)
    norm, act = norm_cpu.rms_norm(x, weight, 1e-5), activation_cpu.silu_mul(gate_up)
    gelu = activation_cpu.gelu_tanh_mul(gate_up)
    for rows in (1, 2, 7, 33):
        assert torch.equal(norm_cpu.rms_norm(x[:rows], weight, 1e-5), norm[:rows])
        assert torch.equal(activation_cpu.silu_mul(gate_up[:rows]), act[:rows])
        assert torch.equal(activation_cpu.gelu_tanh_mul(gate_up[:rows]), gelu[:rows])
