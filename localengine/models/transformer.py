"""The forward pass of a decoder-only transformer, over a flat ragged batch and a paged KV pool.

One pass serves every family: what sets them apart is data in the :class:`ModelSpec`. It began as Llama's (Touvron
et al., 2023, arXiv 2302.13971); Mistral adds sliding windows (arXiv 2310.06825), Qwen2 biases (arXiv 2407.10671),
Qwen3 norms of queries and keys (arXiv 2505.09388), SmolLM3 layers without positions, Gemma 2 soft-caps and norms
behind the blocks (arXiv 2408.00118), Gemma 3 a second rotary embedding for sliding layers (arXiv 2503.19786).

Shapes: T tokens of the step, H query heads, K key-value heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from orchestra.localengine.errors import ModelFileError
from orchestra.localengine.models.batch import Batch
from orchestra.localengine.models.layout import EMBEDDING, HEAD, NORM, layer_shapes, tensor_shapes
from orchestra.localengine.models.operations import Operations
from orchestra.localengine.models.row_stable import Matrix
from orchestra.localengine.models.spec import LayerKind, ModelSpec, Rope
from orchestra.localengine.step import StepAbandoned

__all__ = ["Transformer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer's weights; matrices are packed."""

    kind: LayerKind
    input_norm: Tensor  # [hidden]
    qkv: Matrix  # [(H + 2K) * D, hidden]
    qkv_bias: Tensor | None  # [(H + 2K) * D]
    qk_norm: Tensor | None  # [H + K, D]
    out: Matrix  # [hidden, H * D]
    out_bias: Tensor | None  # [hidden]
    attention_norm: Tensor | None  # [hidden], of what attention adds
    mlp_norm: Tensor  # [hidden]
    gate_up: Matrix  # [2 * intermediate, hidden]
    down: Matrix  # [hidden, intermediate]
    down_norm: Tensor | None  # [hidden], of what the MLP adds


class Transformer:
    """Weights of a model, and its forward pass by the ``operations`` of a device.

    ``weights`` maps Hugging Face tensor names to tensors on that device. The model takes them over: the dict is
    empty afterwards, so that packed matrices do not exist twice (pass a copy of the dict to keep the tensors). A
    tied embedding is the exception: it is a lookup table and a packed matrix at once.

    Raises :class:`ModelFileError` where a tensor is missing, has another shape, or has no place in the model.
    """

    def __init__(self, spec: ModelSpec, weights: dict[str, Tensor], operations: Operations) -> None:
        self.spec = spec
        self._ops = operations
        shapes = tensor_shapes(spec)

        def take(name: str) -> Tensor:
            tensor = weights.pop(name, None)
            if tensor is None:
                raise ModelFileError(f"the model file has no tensor {name!r}, which a {spec.architecture} needs")
            if tensor.shape != shapes[name]:
                raise ModelFileError(
                    f"tensor {name!r} has shape {list(tensor.shape)}; the model's numbers ask for "
                    f"{list(shapes[name])}"
                )
            if tensor.dim() == 1 and name.endswith(".weight"):  # every vector but a bias is the weight of a norm
                return tensor.to(torch.float32) + spec.norm_offset
            return tensor.to(operations.dtype)

        with torch.inference_mode():
            self._embedding = take(EMBEDDING)
            self._layers = [
                _layer(
                    spec,
                    i,
                    {name: take(f"model.layers.{i}.{name}") for name in layer_shapes(spec)},
                    operations.pack,
                )
                for i in range(spec.num_layers)
            ]
            self._norm = take(NORM)
            self._head = operations.pack(self._embedding if spec.tie_embeddings else take(HEAD))
            ropes = {layer.kind.rope for layer in self._layers}
            device = self._embedding.device
            self._frequencies = {rope: _frequency(rope, spec.head_dim).to(device) for rope in ropes}
            self._windows = frozenset(layer.kind.window for layer in self._layers)
        self._activation = operations.silu_mul if spec.activation == "silu" else operations.gelu_tanh_mul
        self._scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
        if weights:
            names = ", ".join(sorted(weights)[:3])
            raise ModelFileError(
                f"the model file has {len(weights)} tensors that a {spec.architecture} has no place for: {names}"
            )

    @property
    def windows(self) -> frozenset[int | None]:
        """The windows of its layers, which a batch must have a plan for; None is the whole context."""
        return self._windows

    def forward(
        self, batch: Batch, pools: Sequence[Tensor] | Tensor, abandon: Callable[[], bool] | None = None
    ) -> Tensor:
        """Compute the step and return the logits of ``batch.wanted``: float32 [wanted, vocab].

        Keys and values of all tokens are written to ``pools``, one for each layer: [blocks, K, block_size, 2D].
        ``abandon`` is asked between layers; where it says yes, StepAbandoned is raised.
        """
        spec, ops, eps = self.spec, self._ops, self.spec.rms_norm_eps
        turns = self._turns(batch.positions)
        residual = F.embedding(batch.token_ids, self._embedding).to(torch.float32)  # [T, hidden]
        if spec.embedding_scale != 1.0:
            residual.mul_(spec.embedding_scale)
        delta = torch.zeros_like(residual, dtype=ops.dtype)  # what the last block adds to the residual
        for layer, pool in zip(self._layers, pools, strict=True):
            if abandon is not None and abandon():
                raise StepAbandoned
            x = ops.add_rms_norm(delta, residual, layer.input_norm, eps)  # [T, hidden]
            qkv = _biased(ops.linear(x, layer.qkv), layer.qkv_bias)  # [T, (H + 2K) * D]
            cos, sin = turns[layer.kind.rope]
            q = ops.rope_kv(qkv, cos, sin, batch.slots, pool, qk_norm=layer.qk_norm, eps=eps)  # [T, H, D]
            if layer is self._layers[-1] and not len(batch.wanted):
                return residual.new_empty(0, spec.vocab_size)
            x = self._attend(q, pool, batch, layer.kind.window)  # [T, H * D]
            if layer is self._layers[-1]:  # of the other tokens, keys and values are all that is ever read
                x, residual = x[batch.wanted], residual[batch.wanted]  # T is the number of these from here on
            delta = self._normed(_biased(ops.linear(x, layer.out), layer.out_bias), layer.attention_norm)
            x = ops.add_rms_norm(delta, residual, layer.mlp_norm, eps)  # [T, hidden]
            x = self._activation(ops.linear(x, layer.gate_up))  # [T, intermediate]
            delta = self._normed(ops.linear(x, layer.down), layer.down_norm)
        logits = ops.logits(ops.add_rms_norm(delta, residual, self._norm, eps), self._head)
        if spec.logit_softcap is not None:
            logits.div_(spec.logit_softcap).tanh_().mul_(spec.logit_softcap)
        return logits

    def _turns(self, positions: Tensor) -> dict[Rope | None, tuple[Tensor, Tensor]]:
        """Cosine and sine [T, D / 2] for each rope of the layers; no rope is no turn."""
        turns: dict[Rope | None, tuple[Tensor, Tensor]] = {}
        for rope, frequency in self._frequencies.items():
            angle = torch.outer(positions.to(torch.float32), frequency)
            cos, sin = angle.cos(), angle.sin()
            if rope is not None and rope.magnitude != 1.0:
                cos, sin = cos.mul_(rope.magnitude), sin.mul_(rope.magnitude)
            turns[rope] = cos, sin
        return turns

    def _attend(self, q: Tensor, pool: Tensor, batch: Batch, window: int | None) -> Tensor:
        """Attention of ``q`` [T, H, D], decode rows and runs apart: [T, H * D]."""
        ops, plan, softcap = self._ops, batch.attention[window], self.spec.attention_softcap
        parts = []
        if plan.decode is not None:
            parts.append(ops.decode(q[: batch.num_decode], pool, plan.decode, self._scale, softcap=softcap))
        if plan.extend is not None:
            parts.append(ops.extend(q[batch.num_decode :], pool, plan.extend, self._scale, softcap=softcap))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else self._ops.rms_norm(x, weight, self.spec.rms_norm_eps)


def _layer(spec: ModelSpec, number: int, own: dict[str, Tensor], pack: Callable[[Tensor], Matrix]) -> _Layer:
    """Layer ``number`` from its tensors, which are taken out of ``own`` as they are packed."""

    def fused(*names: str) -> Tensor:
        return torch.cat([own.pop(name) for name in names])

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    after = own.pop("post_attention_layernorm.weight")
    qk_norm = None
    if spec.qk_norm:
        heads = (("self_attn.q_norm.weight", spec.num_heads), ("self_attn.k_norm.weight", spec.num_kv_heads))
        qk_norm = torch.cat([own.pop(name).expand(count, -1) for name, count in heads])
    return _Layer(
        kind=spec.layer(number),
        input_norm=own.pop("input_layernorm.weight"),
        qkv=pack(fused(*(f"{name}.weight" for name in qkv))),
        qkv_bias=fused(*(f"{name}.bias" for name in qkv)) if spec.qkv_bias else None,
        qk_norm=qk_norm,
        out=pack(own.pop("self_attn.o_proj.weight")),
        out_bias=own.pop("self_attn.o_proj.bias", None),
        attention_norm=after if spec.post_norms else None,
        mlp_norm=own.pop("pre_feedforward_layernorm.weight") if spec.post_norms else after,
        gate_up=pack(fused("mlp.gate_proj.weight", "mlp.up_proj.weight")),
        down=pack(own.pop("mlp.down_proj.weight")),
        down_norm=own.pop("post_feedforward_layernorm.weight", None),
    )


def _biased(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x.add_(bias)


def _frequency(rope: Rope | None, head_dim: int) -> Tensor:
    """Radians per position of each pair of dimensions, float32 [head_dim / 2]."""
    if rope is None:
        return torch.zeros(head_dim // 2)
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequency = 1.0 / rope.theta**exponent
    if not rope.factors:
        return frequency
    return (frequency.double() / torch.tensor(rope.factors, dtype=torch.float64)).float()
