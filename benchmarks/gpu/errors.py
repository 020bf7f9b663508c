"""From results and what they ought to be to a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gpu.figures import Figure, Target
from gpu.lab import Lab

__all__ = ["WrongResult", "compared", "poison", "relative_error"]

_MOST = Target(most=1e-2)  # of bfloat16: 2e-3 for the result alone, more where factors are rounded too


class WrongResult(Exception):
    """A result that no rounding explains; the message tells which."""


def compared(
    lab: Lab,
    what: str,
    compute: Callable[[], Sequence[Tensor]],
    exact: Sequence[Tensor],
    target: Target = _MOST,
    note: str = "",
) -> Figure:
    """The largest relative error of the results of ``compute``, which is called several times, to ``exact``.

    Raises WrongResult where a call's results differ from those of the first: they are the same work.
    """
    first = compute()
    for number in range(2, 3 if lab.rehearsal else 4):
        poison(first)
        for nth, (one, again) in enumerate(zip(first, compute(), strict=True)):
            if not torch.equal(_bits(one), _bits(again)):
                raise WrongResult(f"result {nth} of call {number} has other bits than that of the first: a race")
    error = max(relative_error(one, right) for one, right in zip(first, exact, strict=True))
    return Figure(what=what, value=error, unit="rel. error", target=target, note=note)


def relative_error(result: Tensor, exact: Tensor) -> float:
    """The length of the difference over that of ``exact``; infinite where NaN is not in the same places.

    Raises WrongResult where the shapes differ.
    """
    if result.shape != exact.shape:
        raise WrongResult(f"a result has shape {list(result.shape)}, and ought to have {list(exact.shape)}")
    right = exact.double()
    got = result.double().to(right.device)
    nowhere = right.isnan()
    if not torch.equal(got.isnan(), nowhere):
        return float("inf")
    got, right = got.masked_fill(nowhere, 0.0), right.masked_fill(nowhere, 0.0)
    return float((got - right).norm() / right.norm().clamp(min=1e-30))


def poison(results: Sequence[Tensor]) -> None:
    """Leave NaN in the memory that torch will hand out next for results of these sizes."""
    left = [torch.full_like(result, float("nan")) for result in results if result.is_floating_point()]
    del left


def _bits(result: Tensor) -> Tensor:
    if not result.is_floating_point():
        return result
    return result.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[result.element_size()])
