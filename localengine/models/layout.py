"""The tensors of a model: their Hugging Face names and their shapes, from its spec."""

from __future__ import annotations

from orchestra.localengine.models.spec import ModelSpec

__all__ = ["EMBEDDING", "HEAD", "NORM", "layer_shapes", "tensor_shapes"]

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name, without the ``model.layers.N.`` before it, and shape of every tensor of one layer."""
    hidden, width = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (width, hidden),
        "mlp.up_proj.weight": (width, hidden),
        "mlp.down_proj.weight": (hidden, width),
    }
    if spec.qkv_bias:
        shapes |= {
            "self_attn.q_proj.bias": (queries,),
            "self_attn.k_proj.bias": (keys,),
            "self_attn.v_proj.bias": (keys,),
        }
    if spec.out_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if spec.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (spec.head_dim,), "self_attn.k_norm.weight": (spec.head_dim,)}
    if spec.post_norms:  # post_attention_layernorm is one of them, then, and no longer the one before the MLP
        shapes |= {"pre_feedforward_layernorm.weight": (hidden,), "post_feedforward_layernorm.weight": (hidden,)}
    return shapes


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the model, a tied head not among them."""
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (spec.vocab_size, spec.hidden_size),
        NORM: (spec.hidden_size,),
    }
    if not spec.tie_embeddings:
        shapes[HEAD] = (spec.vocab_size, spec.hidden_size)
    layer = layer_shapes(spec)
    for i in range(spec.num_layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes
