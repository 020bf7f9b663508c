"""The step-time model: how long a step of a given load takes, learned from the steps that ran.

::

    seconds = a + b * prefill_tokens + c * decode_rows + d * kv_tokens

Step time is what users feel, and it differs by two orders of magnitude between machines, so a scheduler that
bounds it must measure it. ConServe (arXiv 2410.01228) and HyGen (arXiv 2501.14808) size bulk work by such a model,
profiled beforehand; here it is fitted while running.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["CostModel", "StepCost", "StepLoad"]


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step computes. ``kv_tokens`` is the number of cached positions that its rows attend to, summed."""

    prefill_tokens: int = 0
    decode_rows: int = 0
    kv_tokens: int = 0

    def plus_decode(self, start: int) -> StepLoad:
        """The load with one more decode row, at position ``start``."""
        return StepLoad(self.prefill_tokens, self.decode_rows + 1, self.kv_tokens + start + 1)

    def plus_prefill(self, start: int, count: int) -> StepLoad:
        """The load with one more chunk of a prompt: ``count`` tokens from position ``start`` on."""
        return StepLoad(self.prefill_tokens + count, self.decode_rows, self.kv_tokens + start + count)

    def __sub__(self, other: StepLoad) -> StepLoad:
        return StepLoad(
            self.prefill_tokens - other.prefill_tokens,
            self.decode_rows - other.decode_rows,
            self.kv_tokens - other.kv_tokens,
        )


@dataclass(frozen=True, slots=True)
class StepCost:
    """The four coefficients, in seconds. The defaults are a small model (135 M, float32) on two CPU cores.

    ``error`` is by what share of it a prediction typically misses.
    """

    base: float = 0.045
    per_prefill_token: float = 0.002
    per_decode_row: float = 0.0035
    per_kv_token: float = 5e-6
    error: float = 0.0

    def predict(self, load: StepLoad) -> float:
        """Seconds that a step of this load takes."""
        return (
            self.base
            + self.per_prefill_token * load.prefill_tokens
            + self.per_decode_row * load.decode_rows
            + self.per_kv_token * load.kv_tokens
        )

    def prefill_room(self, seconds: float) -> float:
        """How many prefill tokens (which attend to themselves, too) take ``seconds``. May be infinite."""
        if seconds <= 0:
            return 0.0
        per_token = self.per_prefill_token + self.per_kv_token
        return seconds / per_token if per_token > 0 else math.inf


_FORGET = 0.98  # a step's weight halves every 34 steps
_INERTIA = 0.1  # keeps a coefficient that the recent steps do not tell about
_ANCHOR = 0.05  # how much the proportions of a usual machine count beside the recent steps
_PACE = 0.02  # how fast the machine's speed is followed
_FAR = 3.0  # an error of more than this many typical ones is taken for an outlier
_FOLLOW = 0.1  # how fast the typical error follows
_LEAST = 0.01  # what a prediction may miss by, always
_SWEEPS = 8


class CostModel:
    """Fits a `StepCost` to measured steps.

    Least squares of relative errors over an exponentially weighted window, each coefficient held at 0 or above (by
    coordinate descent on the normal equations, which is exact for a problem that small), and tied

    - loosely to its last value, so that hours of pure decoding do not make it forget what prefill costs;
    - to that of the ``seed`` at the speed of this machine. A scheduler that fills each step up to a bound makes
      steps that all take the same time, and such steps do not tell what of it is fixed, and what is a row's: left
      to themselves, the coefficients drift apart with the noise, and the bound is kept no more.

    A step far from its prediction counts little (Huber's weight: one garbage collection teaches nothing), but what
    counts as far grows too, so that a lasting change is learned within some steps.
    """

    def __init__(self, seed: StepCost | None = None) -> None:
        self._seed = seed or StepCost()
        # everything below is in multiples of the seed's coefficients
        self._theta = [1.0] * 4
        self._pace = 1.0  # what a step takes on the whole
        self._steps = 0
        self._gram = [[0.0] * 4 for _ in range(4)]
        self._moment = [0.0] * 4
        self._error = 0.25

    @property
    def cost(self) -> StepCost:
        """The coefficients as they stand."""
        base, prefill, decode, kv = self._theta
        return StepCost(
            base * self._seed.base,
            prefill * self._seed.per_prefill_token,
            decode * self._seed.per_decode_row,
            kv * self._seed.per_kv_token,
            self._error,
        )

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn that a step of this load took ``seconds``. A value that is no duration is ignored."""
        usual = self._seed.predict(load)
        if not (math.isfinite(seconds) and seconds >= 0 and usual > 0):
            return
        # what each part of the load takes on the seed's machine, as a share of the whole there
        x = [
            self._seed.base / usual,
            self._seed.per_prefill_token * load.prefill_tokens / usual,
            self._seed.per_decode_row * load.decode_rows / usual,
            self._seed.per_kv_token * load.kv_tokens / usual,
        ]
        took = seconds / usual
        predicted = sum(t * share for t, share in zip(self._theta, x, strict=True))
        missed = abs(took - predicted) / max(predicted, _LEAST * took) if took > 0 else 1.0
        far = _FAR * self._error
        weight = min(1.0, far / missed) if missed > 0 else 1.0
        self._error += _FOLLOW * (min(missed, 2 * far) - self._error)
        self._error = max(self._error, _LEAST)
        self._steps += 1
        self._pace += max(_PACE, 1 / self._steps) * weight * (took - self._pace)
        for i in range(4):
            self._moment[i] = _FORGET * self._moment[i] + weight * x[i] * took
            for j in range(4):
                self._gram[i][j] = _FORGET * self._gram[i][j] + weight * x[i] * x[j]
        self._solve()

    def _solve(self) -> None:
        theta = list(self._theta)
        tie = _INERTIA * sum(self._gram[i][i] for i in range(4)) / 4 * (1 - _FORGET)
        for _ in range(_SWEEPS):
            for i in range(4):
                others = sum(self._gram[i][j] * theta[j] for j in range(4) if j != i)
                anchor = _ANCHOR * self._gram[i][i]  # where a part was not seen of late, nothing pulls it
                top = self._moment[i] - others + tie * self._theta[i] + anchor * self._pace
                theta[i] = max(0.0, top / (self._gram[i][i] + tie + anchor))
        self._theta = theta
