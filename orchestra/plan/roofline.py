"""How long a step takes: what it reads and computes, held against what a device can.

The roofline model (Williams, Waterman and Patterson, 2009, "Roofline: an insightful visual performance model for
multicore architectures"), once for each of the two kinds of work in a step, which run one after the other:

- matrix products read all weights, however many tokens they serve. Up to the *ridge* they take as long as reading
  does, beyond it as long as computing;
- attention reads the keys and values of each request by itself, and is mostly bound by memory, whatever the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestra.plan.device import Device
from orchestra.plan.footprint import Footprint

__all__ = ["Bound", "Roofline", "StepTime"]

Bound = Literal["weights", "kv", "compute", "overhead"]
"""What most of a step's time goes into: reading weights or the KV cache, computing, or what is neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step of ``batch`` requests, and what they go into.

    ``weights``: reading the matrices; ``products``: computing with them; ``matrices``: both, as far as they
    overlap. ``attention``: reading the KV cache, or computing with it. ``other``: all that is neither.
    """

    batch: int
    weights: float
    products: float
    matrices: float
    attention: float
    other: float

    @property
    def seconds(self) -> float:
        return self.matrices + self.attention + self.other

    @property
    def tokens_per_second(self) -> float:
        return self.batch / self.seconds

    @property
    def bound(self) -> Bound:
        if self.other > max(self.matrices, self.attention):
            return "overhead"
        if self.products > max(self.weights, self.attention):
            return "compute"
        return "kv" if self.attention > self.matrices else "weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A model on a device. ``dtype`` is what matrices are kept in, one of ``device.flops``.

    ``step_tokens`` is the most that a step computes.
    """

    model: Footprint
    device: Device
    dtype: str
    step_tokens: int

    def decode(self, batch: int, context: float) -> StepTime:
        """A step of one token for each of ``batch`` requests, each with ``context`` tokens before it."""
        return self.serving(batch, context, 0.0, 1.0)

    def serving(self, batch: int, context: float, prompt: float, output: float) -> StepTime:
        """A step while ``batch`` requests run, of ``prompt`` and ``output`` tokens: one of each is at each place.

        So as many prompts begin as outputs end, and a step computes ``batch * prompt / output`` tokens of prompts
        beside one of each output. It is several steps, then, where that is more than ``step_tokens``.
        """
        model, device = self.model, self.device
        fresh = batch * prompt / output
        steps = max(1.0, (batch + fresh) / self.step_tokens)
        weights = steps * model.step_weight_bytes / device.bandwidth
        # of a prompt's tokens only the last needs its logits
        flops = batch * (model.token_flops + model.head_flops) + fresh * model.token_flops
        products = flops / self._rate
        shorter = min(weights, products)
        return StepTime(
            batch=batch,
            weights=weights,
            products=products,
            matrices=max(weights, products) + (1 - device.overlap) * shorter,
            attention=batch * self._attention(context) + fresh * self._scores(prompt / 2),
            other=steps * device.step_seconds + batch * device.row_seconds,
        )

    def first_token(self, prompt: int) -> float:
        """Seconds until a prompt of so many tokens has its first output token, on a device that is free."""
        model, device = self.model, self.device
        steps = -(-prompt // self.step_tokens)
        weights = steps * model.step_weight_bytes / device.bandwidth
        products = (prompt * model.token_flops + model.head_flops) / self._rate
        matrices = max(weights, products) + (1 - device.overlap) * min(weights, products)
        return matrices + prompt * self._scores(prompt / 2) + steps * device.step_seconds + device.row_seconds

    @property
    def ridge(self) -> float:
        """Tokens in a step from which on its matrix products take longer to compute than to read."""
        per_token = (self.model.token_flops + self.model.head_flops) / self._rate
        return self.model.step_weight_bytes / self.device.bandwidth / per_token

    def crossing(self, context: float) -> int | None:
        """The least batch of decode steps that is bound by computing.

        None where none is: reading the KV cache of ``context`` tokens takes longer than a token's products, and
        both grow alike with the batch.
        """
        if self._attention(context) >= (self.model.token_flops + self.model.head_flops) / self._rate:
            return None
        return int(self.ridge) + 1

    @property
    def _rate(self) -> float:
        return self.device.flops[self.dtype]

    def _attention(self, context: float) -> float:
        """Seconds of a decoded token's attention."""
        read = self.model.kv_bytes(context) / (self.device.kv_bandwidth or self.device.bandwidth)
        return max(read, self._scores(context))

    def _scores(self, context: float) -> float:
        """Seconds to compute a token's attention to ``context`` others; a prompt's read them once for many."""
        return self.model.score_flops * self.model.attended(context) / self._rate
