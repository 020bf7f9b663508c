"""Which launch is kept: each candidate is checked against the reference, timed, and compared with all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestra.kernels.launch import trial
from orchestra.kernels.launch_table import LaunchConfig, LaunchRow
from orchestra.kernels.tuning.timer import Timer

__all__ = ["Problem", "Trial", "best", "told", "tried", "tuned_rows"]

_WORTH = 0.99  # of the time as launched now: less of a gain is noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One use of an operation.

    ``prepare`` makes a call of it, under the launch that is tried: plans depend on it. ``expected`` computes what
    the reference makes of the same, in float64 on the CPU, and the results may differ by ``tolerance``, absolute
    and relative. ``outcome`` adds to a result what the call wrote elsewhere.
    """

    name: str
    prepare: Callable[[], Callable[[], Tensor]]
    expected: Callable[[], Tensor]
    tolerance: float
    outcome: Callable[[Tensor], Tensor] = lambda result: result


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of a candidate: seconds of each problem that was timed, or why there are none."""

    config: LaunchConfig
    seconds: tuple[float, ...] = ()
    failed: str | None = None


def tried(
    op: str, candidates: Sequence[LaunchConfig], checked: Problem, timed: Sequence[Problem], timer: Timer
) -> Iterator[Trial]:
    """Yield a trial of each candidate: it is timed only where its result for ``checked`` is the reference's."""
    expected = checked.expected()
    for config in candidates:
        with trial(op, config):
            try:
                wrong = _difference(checked.outcome(checked.prepare()()), expected, checked.tolerance)
                if wrong is None:
                    seconds = tuple(timer.seconds(problem.prepare()) for problem in timed)
            except Exception as error:  # it does not compile, or wants more than the device has
                wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        yield Trial(config=config, failed=wrong) if wrong else Trial(config=config, seconds=seconds)


def _difference(result: Tensor, expected: Tensor, tolerance: float) -> str | None:
    """What is wrong with a result, or None."""
    found = result.detach().to("cpu", torch.float64)
    if found.shape != expected.shape:
        return f"has shape {list(found.shape)}, not {list(expected.shape)}"
    if torch.allclose(found, expected.double(), atol=tolerance, rtol=tolerance):
        return None
    return f"differs from the reference by {(found - expected).abs().max().item():.3g}"


def best(trials: Sequence[Trial], now: LaunchConfig) -> Trial | None:
    """The trial with the least geometric mean over the problems; None where all failed.

    ``now`` stays where nothing is faster by one percent.
    """
    good = [one for one in trials if one.failed is None]
    if not good:
        return None
    first = min(good, key=_mean)
    current = next((one for one in good if one.config == now), None)
    return current if current is not None and _mean(first) > _WORTH * _mean(current) else first


def _mean(one: Trial) -> float:
    return math.exp(sum(math.log(seconds) for seconds in one.seconds) / len(one.seconds))


def tuned_rows(
    chosen: Sequence[tuple[Mapping[str, int], LaunchConfig]], rest: LaunchRow, gpu: str
) -> tuple[LaunchRow, ...]:
    """Rows for the shapes that were tuned, the smallest first, and then ``rest`` for what is larger than all.

    Every shape has the same numbers; that which comes first in it is compared first.
    """
    ordered = sorted(chosen, key=lambda one: tuple(one[0].values()))
    rows = [LaunchRow(up_to=shape, config=config, tuned=gpu) for shape, config in ordered]
    return (*rows, LaunchRow(up_to={}, config=rest.config, tuned=rest.tuned))


def told(config: LaunchConfig) -> str:
    """A launch in a few words."""
    blocks = " ".join(f"{name}={size}" for name, size in config.blocks.items())
    return f"{blocks} warps={config.num_warps} stages={config.num_stages}".strip()
