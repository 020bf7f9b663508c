from __future__ import annotations

import pytest
import torch
from torch import Tensor

from orchestra.kernels.norm import reference, triton_

# (absolute, relative) error allowed against float64
TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.float16: (2e-3, 2e-3)}
TYPES = list(TOLERANCE)


def padded(rows: int, hidden: int, dtype: torch.dtype) -> Tensor:
    """Rows with gaps of NaN between them: what lies in a gap must reach nothing, and nothing a gap."""
    memory = torch.full((rows, hidden + 16), float("nan"), dtype=dtype)
    memory[:, :hidden] = torch.randn(rows, hidden) * 3
    return memory[:, :hidden]


def gaps(view: Tensor) -> Tensor:
    rows, hidden = view.shape
    return view.as_strided((rows, 16), view.stride(), hidden)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("hidden", [1, 64, 80, 576])
def test_each_row_is_that_of_the_reference(hidden: int, dtype: torch.dtype) -> None:
    x, weight = padded(5, hidden, dtype), torch.randn(hidden, dtype=dtype)
    x[0] = 0  # eps alone keeps this finite
    before = x.clone()
    y = triton_.rms_norm(x, weight, 1e-5)
    assert y.dtype == dtype
    atol, rtol = TOLERANCE[dtype]
    exact = reference.rms_norm(x.double(), weight.double(), 1e-5)
    torch.testing.assert_close(y.double(), exact, atol=atol, rtol=rtol)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("hidden", [80, 576])
def test_the_sum_is_added_in_place_and_normalised(hidden: int, dtype: torch.dtype) -> None:
    x, residual, weight = padded(3, hidden, dtype), padded(3, hidden, dtype), torch.randn(hidden, dtype=dtype)
    total, before = x + residual, x.clone()
    y = triton_.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, total)
    assert torch.equal(x, before)
    assert gaps(residual).isnan().all()
    assert torch.equal(y, triton_.rms_norm(total, weight, 1e-6))
    atol, rtol = TOLERANCE[dtype]
    exact = reference.rms_norm(total.double(), weight.double(), 1e-6)
    torch.testing.assert_close(y.double(), exact, atol=atol, rtol=rtol)


def test_a_residual_may_be_more_exact_than_what_is_added() -> None:
    x, residual = torch.randn(2, 64).half(), torch.randn(2, 64)
    total, weight = residual + x, torch.randn(64)
    y = triton_.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, total)
    assert y.dtype == torch.float16
    torch.testing.assert_close(y.float(), reference.rms_norm(total, weight, 1e-6), atol=2e-3, rtol=2e-3)


def test_a_row_may_lie_beyond_what_an_int32_counts() -> None:
    stride = 2**30  # of rows: the last begins at 3 * 2**30; what is not written takes no memory
    x, residual = (
        torch.empty(3 * stride + 64, dtype=torch.float16).as_strided((4, 64), (stride, 1)) for _ in "xr"
    )
    given, before = torch.randn(4, 64).half(), torch.randn(4, 64).half()
    x.copy_(given)
    residual.copy_(before)
    weight = torch.randn(64).half()
    y = triton_.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, given + before)
    assert torch.equal(y, triton_.rms_norm(given + before, weight, 1e-5))


def test_no_rows_are_no_work() -> None:
    x = torch.empty(0, 64)
    assert triton_.rms_norm(x, torch.ones(64), 1e-5).shape == (0, 64)
    assert triton_.add_rms_norm(x, x.clone(), torch.ones(64), 1e-5).shape == (0, 64)


def test_rows_that_are_not_rows_are_refused() -> None:
    columns, weight = torch.randn(8, 4).t(), torch.ones(8)
    with pytest.raises(ValueError, match="side by side"):
        triton_.rms_norm(columns, weight, 1e-5)
    with pytest.raises(ValueError, match="side by side"):
        triton_.add_rms_norm(columns.contiguous(), columns, weight, 1e-5)
    with pytest.raises(ValueError, match=r"\[4, 8\], and the residual \[1, 8\]"):
        triton_.add_rms_norm(columns.contiguous(), torch.zeros(1, 8), weight, 1e-5)
