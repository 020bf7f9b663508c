"""What a model's steps read, compute and keep: plain numbers, from its shape and what its numbers are kept in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestra.localengine.models.capacity import KvDtype
    from orchestra.localengine.models.spec import ModelSpec
    from orchestra.localengine.precision import Precision

__all__ = ["Footprint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """A model as a device sees it. Bytes and operations; a product and its sum are two operations.

    ``weight_bytes`` are kept; of them each step reads ``step_weight_bytes``. A token keeps
    ``kv_bytes_per_token``, equally much in each of ``layers``, of which ``windowed_layers`` read the latest
    ``window`` tokens only. ``token_flops`` is what a token computes in the layers' matrices, ``head_flops`` what
    it does in the output projection, if its logits are wanted, and ``score_flops`` what it does in one layer for
    each token that it attends to.
    """

    parameters: int
    weight_bytes: int
    step_weight_bytes: int
    kv_bytes_per_token: int
    layers: int
    token_flops: int
    head_flops: int
    score_flops: int
    windowed_layers: int = 0
    window: int = 0

    @classmethod
    def of(cls, spec: ModelSpec, precision: Precision, kv_dtype: KvDtype | None = None) -> Footprint:
        """That of a model whose matrices are kept in ``precision``; ``kv_dtype`` None goes with them."""
        from orchestra.localengine.models import capacity
        from orchestra.localengine.models.layout import layer_shapes

        matrices = sum(math.prod(shape) for shape in layer_shapes(spec).values() if len(shape) == 2)
        return cls(
            parameters=capacity.weight_values(spec),
            weight_bytes=capacity.weight_bytes(spec, precision),
            step_weight_bytes=capacity.step_weight_bytes(spec, precision),
            kv_bytes_per_token=capacity.kv_bytes_per_token(spec, precision, kv_dtype),
            layers=spec.num_layers,
            token_flops=2 * spec.num_layers * matrices,
            head_flops=2 * spec.vocab_size * spec.hidden_size,
            score_flops=4 * spec.num_heads * spec.head_dim,
            windowed_layers=len(spec.sliding_layers),
            window=spec.sliding_window or 0,
        )

    def attended(self, context: float) -> float:
        """Tokens that one with ``context`` before it attends to, itself included, summed over the layers."""
        length = context + 1
        return (self.layers - self.windowed_layers) * length + self.windowed_layers * min(length, self.window)

    def kv_bytes(self, context: float) -> float:
        """What a token reads of the KV cache with ``context`` tokens before it."""
        return self.kv_bytes_per_token / self.layers * self.attended(context)
