"""The metadata of a GGUF file, as a spec.

Keys begin with the name of the architecture. What they do not say (Gemma's window pattern, its base for sliding
layers, its 27B models' scale) is what llama.cpp, whose format it is, takes for granted.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestra.localengine.models.rope import linear_factors, yarn_factors, yarn_magnitude
from orchestra.localengine.models.spec import ModelSpec, Rope
from orchestra.localengine.weights.fields import Fields

__all__ = ["spec_of_metadata"]

_ARCHITECTURES = ("llama", "qwen2", "qwen3", "smollm3", "gemma2", "gemma3")
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}  # these scale scores by the width of a head before it was widened


def spec_of_metadata(
    metadata: Mapping[str, object],
    *,
    vocab_size: int,
    rope_factors: tuple[float, ...],
    tie_embeddings: bool,
    qkv_bias: bool,
    out_bias: bool,
) -> ModelSpec:
    """The shape of the model; what the metadata do not say is seen from its tensors.

    Raises ValueError (fault and remedy) where it is none that the engine runs.
    """
    fields = Fields(metadata)
    architecture = fields.text("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise ValueError(
            f"its architecture is {architecture!r}; supported are {', '.join(_ARCHITECTURES)}: choose one of those"
        )
    name = architecture
    _refuse_variants(metadata, name)
    hidden_size = fields.integer(f"{name}.embedding_length", most=1 << 17)
    num_layers = fields.integer(f"{name}.block_count", most=1 << 10)
    num_heads = fields.integer(f"{name}.attention.head_count", most=1 << 12)
    head_dim = fields.integer(f"{name}.attention.key_length", most=1 << 12, default=hidden_size // num_heads)
    for key in (f"{name}.rope.dimension_count", f"{name}.attention.value_length"):
        if (width := fields.integer(key, most=1 << 12, default=head_dim)) != head_dim:
            raise ValueError(f"{key} is {width} but a head has {head_dim} numbers; choose a plain {name} model")
    gemma = name.startswith("gemma")
    window = fields.integer(f"{name}.attention.sliding_window", most=1 << 27, least=0, default=0)
    windowed = window and (gemma or name == "llama")  # others state the width of a window that they do not use
    sliding = _sliding_layers(name, fields, num_layers) if windowed else frozenset()
    wide = num_layers == _LAYERS_OF_27B.get(name)
    rope = _rope(fields, name, head_dim, rope_factors)
    return ModelSpec(
        architecture=name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer(f"{name}.feed_forward_length", most=1 << 20),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer(f"{name}.attention.head_count_kv", most=1 << 12, default=num_heads),
        head_dim=head_dim,
        max_position=fields.integer(f"{name}.context_length", most=1 << 27),
        rms_norm_eps=fields.real(f"{name}.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope_theta=rope.theta,
        tie_embeddings=tie_embeddings,
        rope_factors=rope.factors,
        rope_magnitude=rope.magnitude,
        sliding_window=window if sliding else None,
        sliding_layers=sliding,
        sliding_rope_theta=fields.real(f"{name}.rope.freq_base_swa", 1.0, 1e12, default=10_000.0)
        if name == "gemma3"
        else None,
        unrotated_layers=frozenset(range(3, num_layers, 4)) if name == "smollm3" else frozenset(),
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        qk_norm=name in ("qwen3", "gemma3"),
        post_norms=gemma,  # the norms' offset is in their weights already
        activation="gelu_tanh" if gemma else "silu",
        attention_scale=(hidden_size / num_heads) ** -0.5 if wide else None,
        attention_softcap=fields.optional_real(f"{name}.attn_logit_softcapping", 1e-3, 1e6),
        logit_softcap=fields.optional_real(f"{name}.final_logit_softcapping", 1e-3, 1e6),
        embedding_scale=hidden_size**0.5 if gemma else 1.0,
    )


def _sliding_layers(name: str, fields: Fields, num_layers: int) -> frozenset[int]:
    """The layers that see a window only."""
    default = {"gemma2": 2, "gemma3": 6}.get(name)
    if default is None:
        return frozenset(range(num_layers))
    pattern = fields.integer(f"{name}.attention.sliding_window_pattern", most=1 << 10, default=default)
    return frozenset(i for i in range(num_layers) if (i + 1) % pattern)


def _rope(fields: Fields, name: str, head_dim: int, factors: tuple[float, ...]) -> Rope:
    theta = fields.real(f"{name}.rope.freq_base", 1.0, 1e12, default=10_000.0)
    kind = fields.text(f"{name}.rope.scaling.type") or "linear"
    if kind not in ("none", "linear", "yarn"):
        raise ValueError(
            f"it has {name}.rope.scaling.type = {kind!r}, which is not supported; choose a plain {name} model"
        )
    if factors:  # Llama 3's scaling is written out
        return Rope(theta=theta, factors=factors)
    old = fields.real(f"{name}.rope.scale_linear", 0.0, 1e6, default=1.0)  # the key of old files
    factor = fields.real(f"{name}.rope.scaling.factor", 0.0, 1e6, default=old)
    if kind == "none" or factor in (0.0, 1.0):
        return Rope(theta=theta)
    if kind == "linear" or theta <= 1.0:
        return Rope(theta=theta, factors=linear_factors(head_dim, factor))
    original = fields.integer(f"{name}.rope.scaling.original_context_length", most=1 << 27)
    stretched = yarn_factors(head_dim, theta, factor=factor, original=original)
    return Rope(theta=theta, factors=stretched, magnitude=yarn_magnitude(factor))


def _refuse_variants(metadata: Mapping[str, object], name: str) -> None:
    """Kinds of models that would load and then answer nonsense, because the forward pass does not know them."""
    plain: dict[str, tuple[object, ...]] = {
        "split.count": (0, 1),
        f"{name}.expert_count": (0,),
        f"{name}.logit_scale": (1.0,),
    }
    for key, accepted in plain.items():
        if key in metadata and metadata[key] not in accepted:
            remedy = "merge its parts into one file" if key == "split.count" else f"choose a plain {name} model"
            raise ValueError(f"it has {key} = {metadata[key]!r}, which is not supported; {remedy}")
