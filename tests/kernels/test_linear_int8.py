"""Int8 products: what they mean, and the two faults that they were repaired of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from orchestra.kernels.linear import int8_fault, linear, pack_int8, reference, torch_cpu_int8

pytestmark = pytest.mark.skipif(int8_fault() is not None, reason=str(int8_fault()))

SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536), (300, 64), (7, 5)]


def random(shape: tuple[int, int], rows: int, loud: float = 30.0) -> tuple[Tensor, Tensor]:
    """A weight, and activations of which some columns are loud, as in language models."""
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(shape, generator=generator) * shape[1] ** -0.5
    x = torch.randn(rows, shape[1], generator=generator)
    x[:, :: max(1, shape[1] // 5)] *= loud
    return weight, x


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 16, 33])
def test_agrees_with_the_reference(shape: tuple[int, int], rows: int) -> None:
    weight, x = random(shape, rows)
    y = linear(x, pack_int8(weight))
    assert y.shape == (rows, shape[0])
    assert y.dtype == torch.float32
    expected = reference.linear(x, reference.pack_int8(weight))
    # a number half-way between two steps may be rounded either way
    step = x.abs().amax(1, keepdim=True) / 127 * weight.abs().amax(1) * 1.01
    assert ((y - expected).abs() <= step).all()


def test_sums_of_the_largest_products_do_not_overflow() -> None:
    """Two products of 255 and 127 are beyond 16 bits; nothing but the size of the answer tells."""
    weight, x = torch.ones(16, 1536), torch.ones(3, 1536)
    weight[1], x[1] = -1, -1
    torch.testing.assert_close(linear(x, pack_int8(weight)), x @ weight.T, rtol=1e-3, atol=0)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_loud_neighbour_does_not_change_a_bit(shape: tuple[int, int]) -> None:
    """One scale for the whole batch (torch's own dynamic int8) rounds a row to nothing beside a loud one."""
    weight, x = random(shape, 65)
    packed = pack_int8(weight)
    alone = torch.cat([linear(row[None], packed) for row in x])
    loud = x.clone()
    loud[40] *= 3000
    for rows in (1, 2, 3, 4, 8, 17, 40, 65):
        assert torch.equal(linear(x[:rows], packed), alone[:rows])
    others = torch.arange(65) != 40
    assert torch.equal(linear(loud, packed)[others], alone[others])
    exact = x[others] @ weight.T
    error = (alone[others] - exact).norm(dim=1) / exact.norm(dim=1)
    assert error.max() < 0.2


def test_zeros_stay_zeros() -> None:
    weight, x = torch.randn(8, 16), torch.randn(3, 16)
    weight[2] = 0
    x[1] = 0
    y = linear(x, pack_int8(weight))
    assert (y[:, 2] == 0).all()
    assert (y[1] == 0).all()
    assert y.isfinite().all()


def test_the_weight_is_not_kept() -> None:
    """Behind the packed form there is a byte for each number, and nothing beside it."""
    weight = torch.randn(512, 1024)
    matrix = pack_int8(weight)
    unpacked, bias = torch.ops.quantized.linear_unpack(matrix.packed)
    assert bias is None
    assert unpacked.dtype == torch.qint8
    assert unpacked.int_repr().abs().max() == 63
    assert matrix.shape == (512, 1024)


def test_the_engine_of_the_process_is_left_as_it_was() -> None:
    backends = torch.backends.quantized
    before = backends.engine
    try:
        for engine in backends.supported_engines:
            if engine != "none":
                backends.engine = engine
                weight, x = random((32, 64), 3)
                assert torch.allclose(linear(x, pack_int8(weight)), x @ weight.T, atol=5)
                assert backends.engine == engine
    finally:
        backends.engine = before


def test_where_it_is_missing_or_wrong_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = torch_cpu_int8.int8_fault.__wrapped__
    with monkeypatch.context() as patch:
        patch.setattr(torch_cpu_int8, "_ENGINE", "abacus")
        assert "without the abacus engine" in str(fault())
    with monkeypatch.context() as patch:
        patch.setattr(torch_cpu_int8, "linear_int8", lambda x, matrix: torch.zeros(3, 8))
        assert "are wrong in this torch" in str(fault())
    with monkeypatch.context() as patch:
        patch.setattr(torch_cpu_int8, "_WEIGHT_STEPS", 127)  # as torch's own
        told = fault()
        assert told is None or "are wrong" in told  # a processor with VNNI adds in 32 bits
    with monkeypatch.context() as patch:
        patch.setattr(torch_cpu_int8, "int8_fault", lambda: "there is none here")
        with pytest.raises(RuntimeError, match="none here"):
            pack_int8(torch.ones(2, 2))
