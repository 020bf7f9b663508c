from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from orchestra.kernels.activation import reference, triton_

ACTIVATIONS = [
    pytest.param(triton_.silu_mul, reference.silu_mul, id="silu"),
    pytest.param(triton_.gelu_tanh_mul, reference.gelu_tanh_mul, id="gelu_tanh"),
]


@pytest.mark.parametrize(
    ("width", "dtype", "tolerance"),
    [  # within a block, a block, and beyond
        (8, torch.float32, 1e-5),
        (64, torch.float16, 2e-3),
        (65, torch.float32, 1e-5),
        (201, torch.float32, 1e-5),
        (201, torch.float16, 2e-3),
    ],
)
@pytest.mark.parametrize(("activation", "exact"), ACTIVATIONS)
def test_against_the_reference_in_float64(
    activation: Callable[[Tensor], Tensor],
    exact: Callable[[Tensor], Tensor],
    width: int,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    memory = torch.full((3, 2 * width + 8), float("nan"), dtype=dtype)  # rows with gaps between them
    x = memory[:, : 2 * width]
    x[:] = torch.randn(x.shape) * 4
    x[0, 0], x[0, 1] = -200.0, 200.0  # where exponentials overflow
    before = x.clone()
    y = activation(x)
    assert (y.shape, y.dtype) == ((3, width), dtype)
    torch.testing.assert_close(y.double(), exact(x.double()), atol=tolerance, rtol=tolerance)
    assert torch.equal(x, before)


def test_a_row_may_lie_beyond_what_an_int32_counts() -> None:
    stride = 2**30  # of rows: the last begins at 3 * 2**30; what is not written takes no memory
    x = torch.empty(3 * stride + 80, dtype=torch.float16).as_strided((4, 80), (stride, 1))
    x.copy_(torch.randn(4, 80))
    assert torch.equal(triton_.silu_mul(x), triton_.silu_mul(x.contiguous()))


@pytest.mark.parametrize(("activation", "exact"), ACTIVATIONS)
def test_no_rows_are_no_work(activation: Callable[[Tensor], Tensor], exact: Callable[[Tensor], Tensor]) -> None:
    x = torch.empty(0, 16)
    assert activation(x).shape == exact(x).shape


def test_rows_that_are_not_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="side by side"):
        triton_.silu_mul(torch.randn(16, 4).t())
