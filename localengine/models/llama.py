"""The Llama forward pass (Touvron et al., 2023, arXiv 2302.13971), over a flat ragged batch and a paged KV pool.

Shapes: T tokens of the step, H query heads, K key-value heads, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from orchestra.kernels.activation import silu_mul
from orchestra.kernels.attention import decode, extend
from orchestra.kernels.linear import linear, pack
from orchestra.kernels.norm import add_rms_norm, rms_norm
from orchestra.kernels.rope_kv import rope_kv
from orchestra.localengine.errors import ModelFileError
from orchestra.localengine.models.batch import Batch
from orchestra.localengine.models.spec import ModelSpec

__all__ = ["LlamaModel"]


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's weights; matrices are packed."""

    input_norm: Tensor  # [hidden]
    qkv: Tensor  # [(H + 2K) * D, hidden]
    out: Tensor  # [hidden, H * D]
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * intermediate, hidden]
    down: Tensor  # [hidden, intermediate]


class LlamaModel:
    """Weights of a Llama, and its forward pass in float32.

    ``weights`` maps Hugging Face tensor names to float32 tensors. The model takes them over: the dict is empty
    afterwards, so that packed matrices do not exist twice (pass a copy of the dict to keep the tensors). A tied
    embedding is the exception: it is a lookup table and a packed matrix at once.

    Raises :class:`ModelFileError` where a tensor is missing, has another shape, or has no place in a Llama.
    """

    def __init__(self, spec: ModelSpec, weights: dict[str, Tensor]) -> None:
        self.spec = spec
        hidden, width = spec.hidden_size, spec.intermediate_size
        q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim

        def take(name: str, *shape: int) -> Tensor:
            tensor = weights.pop(name, None)
            if tensor is None:
                raise ModelFileError(f"the model file has no tensor {name!r}, which a Llama needs")
            if tensor.shape != shape:
                raise ModelFileError(
                    f"tensor {name!r} has shape {list(tensor.shape)}; the model's numbers ask for {list(shape)}"
                )
            return tensor.to(torch.float32)

        with torch.inference_mode():
            self._embedding = take("model.embed_tokens.weight", spec.vocab_size, hidden)
            self._layers: list[_Layer] = []
            for i in range(spec.num_layers):
                at, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
                layer = _Layer(
                    input_norm=take(f"model.layers.{i}.input_layernorm.weight", hidden),
                    qkv=pack(
                        torch.cat(
                            [
                                take(f"{at}.q_proj.weight", q, hidden),
                                take(f"{at}.k_proj.weight", kv, hidden),
                                take(f"{at}.v_proj.weight", kv, hidden),
                            ]
                        )
                    ),
                    out=pack(take(f"{at}.o_proj.weight", hidden, q)),
                    mlp_norm=take(f"model.layers.{i}.post_attention_layernorm.weight", hidden),
                    gate_up=pack(
                        torch.cat(
                            [
                                take(f"{mlp}.gate_proj.weight", width, hidden),
                                take(f"{mlp}.up_proj.weight", width, hidden),
                            ]
                        )
                    ),
                    down=pack(take(f"{mlp}.down_proj.weight", hidden, width)),
                )
                self._layers.append(layer)
            self._norm = take("model.norm.weight", hidden)
            head = self._embedding if spec.tie_embeddings else take("lm_head.weight", spec.vocab_size, hidden)
            self._head = pack(head)
            self._frequency = _rotary_frequency(spec)
        if weights:
            names = ", ".join(sorted(weights)[:3])
            raise ModelFileError(
                f"the model file has {len(weights)} tensors that a Llama has no place for: {names}"
            )

    def forward(self, batch: Batch, pools: Tensor) -> Tensor:
        """Compute the step and return the logits of ``batch.wanted``: float32 [wanted, vocab].

        Keys and values of all tokens are written to ``pools`` [layers, blocks, K, block_size, 2D].
        """
        eps = self.spec.rms_norm_eps
        angle = torch.outer(batch.positions.to(torch.float32), self._frequency)  # [T, D / 2]
        cos, sin = angle.cos(), angle.sin()
        residual = F.embedding(batch.token_ids, self._embedding)  # [T, hidden]
        delta = torch.zeros_like(residual)  # what the last block adds to the residual
        for layer, pool in zip(self._layers, pools, strict=True):
            x = add_rms_norm(delta, residual, layer.input_norm, eps)  # [T, hidden]
            qkv = linear(x, layer.qkv)  # [T, (H + 2K) * D]
            q = rope_kv(qkv, cos, sin, batch.slots, pool)  # [T, H, D]
            delta = linear(self._attend(q, pool, batch), layer.out)  # [T, hidden]
            x = add_rms_norm(delta, residual, layer.mlp_norm, eps)  # [T, hidden]
            x = silu_mul(linear(x, layer.gate_up))  # [T, intermediate]
            delta = linear(x, layer.down)  # [T, hidden]
        if not len(batch.wanted):
            return residual.new_empty(0, self.spec.vocab_size)
        last = (residual + delta)[batch.wanted]  # [wanted, hidden]
        return linear(rms_norm(last, self._norm, eps), self._head)

    def _attend(self, q: Tensor, pool: Tensor, batch: Batch) -> Tensor:
        """Attention of ``q`` [T, H, D], decode rows and runs apart: [T, H * D]."""
        scale = self.spec.head_dim**-0.5
        parts = []
        if batch.decode is not None:
            parts.append(decode(q[: batch.num_decode], pool, batch.decode, scale))
        if batch.extend is not None:
            parts.append(extend(q[batch.num_decode :], pool, batch.extend, scale))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)


def _rotary_frequency(spec: ModelSpec) -> Tensor:
    """Radians per position of each pair of dimensions, float32 [head_dim / 2]."""
    exponent = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    return 1.0 / spec.rope_theta**exponent
