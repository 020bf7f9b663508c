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


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 2e-3)])
@pytest.mark.parametrize("width", [8, 64, 65, 201])  # within a block, a block, and beyond
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


@pytest.mark.parametrize(("activation", "exact"), ACTIVATIONS)
def test_no_rows_are_no_work(activation: Callable[[Tensor], Tensor], exact: Callable[[Tensor], Tensor]) -> None:
    x = torch.empty(0, 16)
    assert activation(x).shape == exact(x).shape


def test_rows_that_are_not_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="side by side"):
        triton_.silu_mul(torch.randn(16, 4).t())
