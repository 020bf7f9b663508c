"""The ``config.json`` of a model on a hub, as a spec.

The keys are those of the configuration classes in Hugging Face's transformers; what a file leaves out has the
value that its class gives it.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestra.localengine.models.rope import linear_factors, llama3_factors, yarn_factors, yarn_magnitude
from orchestra.localengine.models.spec import Activation, ModelSpec, Rope
from orchestra.localengine.weights.fields import Fields

__all__ = ["spec_of_config", "text_config"]

_GEMMA: Mapping[str, object] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
_QWEN: Mapping[str, object] = {"max_position_embeddings": 32_768, "sliding_window": 4096, "max_window_layers": 28}

# what a config of each model type leaves out
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"max_position_embeddings": 131_072, "sliding_window": 4096, "num_key_value_heads": 8},
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
    "smollm3": {
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 4,
        "rope_theta": 2_000_000.0,
        "tie_word_embeddings": True,
    },
    "gemma2": {
        **_GEMMA,
        "vocab_size": 256_000,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {
        **_GEMMA,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window_pattern": 6,
    },
}
_COMMON: Mapping[str, object] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """The part of a config that is about the language model: some models of several kinds have one inside."""
    inner = config.get("text_config")
    if config.get("model_type") == "gemma3" and isinstance(inner, Mapping):
        return {"model_type": "gemma3_text", **inner}
    return config


def spec_of_config(config: Mapping[str, object]) -> ModelSpec:
    """The shape of the model. Raises ValueError (fault and remedy) where it is none that the engine runs."""
    config = text_config(config)
    family = config.get("model_type")
    if not isinstance(family, str) or family not in _DEFAULTS:
        raise ValueError(
            f"its model_type is {str(family)[:40]!r}; supported are {', '.join(_DEFAULTS)}: choose one of those"
        )
    if config.get("quantization_config") is not None:
        raise ValueError(
            "its weights are quantised (quantization_config); choose the unquantised model, or a GGUF"
        )
    values = {**_COMMON, **_DEFAULTS[family], **config}
    fields = Fields(values)
    for key in ("mlp_bias", "use_bidirectional_attention"):
        if fields.flag(key, default=False):
            raise ValueError(f"{key} is set, which is not supported; choose another model")
    hidden_size = fields.integer("hidden_size", most=1 << 17)
    num_layers = fields.integer("num_hidden_layers", most=1 << 10)
    num_heads = fields.integer("num_attention_heads", most=1 << 12)
    head_dim = fields.integer("head_dim", most=1 << 12, default=hidden_size // num_heads)
    gemma = family.startswith("gemma")
    bias = family != "mistral" and fields.flag("attention_bias", default=False)
    sliding = _sliding_layers(family, fields, num_layers)
    rope, max_position = _rope(fields, head_dim)
    return ModelSpec(
        architecture=family.removesuffix("_text"),
        vocab_size=fields.integer("vocab_size", most=1 << 22),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", most=1 << 20),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", most=1 << 12, default=num_heads),
        head_dim=head_dim,
        max_position=max_position,
        rms_norm_eps=fields.real("rms_norm_eps", 0.0, 1.0),
        rope_theta=rope.theta,
        tie_embeddings=fields.flag("tie_word_embeddings", default=False),
        rope_factors=rope.factors,
        rope_magnitude=rope.magnitude,
        sliding_window=fields.integer("sliding_window", most=1 << 27) if sliding else None,
        sliding_layers=sliding,
        sliding_rope_theta=_sliding_theta(fields),
        unrotated_layers=_unrotated_layers(fields, num_layers) if family == "smollm3" else frozenset(),
        qkv_bias=bias or family == "qwen2",
        out_bias=bias and family != "qwen2",
        qk_norm=family in ("qwen3", "gemma3_text"),
        post_norms=gemma,
        norm_offset=1.0 if gemma else 0.0,
        activation=_activation(fields, "hidden_activation" if gemma else "hidden_act"),
        attention_scale=fields.real("query_pre_attn_scalar", 1e-6, 1e9) ** -0.5 if gemma else None,
        attention_softcap=fields.optional_real("attn_logit_softcapping", 1e-3, 1e6) if gemma else None,
        logit_softcap=fields.optional_real("final_logit_softcapping", 1e-3, 1e6) if gemma else None,
        embedding_scale=hidden_size**0.5 if gemma else 1.0,
    )


def _activation(fields: Fields, key: str) -> Activation:
    name = fields.text(key) or fields.text("hidden_act") or ""
    if name not in _ACTIVATIONS:
        raise ValueError(f"its activation is {name[:40]!r}; supported are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _sliding_layers(family: str, fields: Fields, num_layers: int) -> frozenset[int]:
    """The layers that see a window only."""
    everything = frozenset(range(num_layers))
    windowed = fields.optional_real("sliding_window", 1, 1 << 27) is not None
    if family in ("qwen2", "qwen3", "smollm3"):
        windowed = windowed and fields.flag("use_sliding_window", default=False)
    if family == "llama" or not windowed:
        return frozenset()
    if family == "mistral":
        return everything
    kinds = fields.items("layer_types")
    if kinds is not None:
        if len(kinds) != num_layers or not all(k in ("sliding_attention", "full_attention") for k in kinds):
            raise ValueError(
                f"layer_types must say full_attention or sliding_attention for each of {num_layers} layers; "
                "choose a model that does"
            )
        return frozenset(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    if family == "smollm3":
        return _unrotated_layers(fields, num_layers)
    if family == "gemma2":
        return frozenset(range(0, num_layers, 2))
    if family == "gemma3_text":
        pattern = fields.integer("sliding_window_pattern", most=1 << 10)
        return frozenset(i for i in everything if (i + 1) % pattern)
    return frozenset(range(fields.integer("max_window_layers", least=0, most=1 << 10), num_layers))


def _unrotated_layers(fields: Fields, num_layers: int) -> frozenset[int]:
    """SmolLM3's layers without a rotary embedding."""
    rotated = fields.items("no_rope_layers")  # named for the opposite of what its ones mean
    if rotated is not None:
        if len(rotated) < num_layers or not all(r in (0, 1) for r in rotated):
            raise ValueError("no_rope_layers must have a 0 or a 1 for each layer; use a complete model file")
        return frozenset(i for i in range(num_layers) if not rotated[i])
    interval = fields.integer("no_rope_layer_interval", most=1 << 10, default=4)
    return frozenset(i for i in range(num_layers) if (i + 1) % interval == 0)


def _scalings(fields: Fields) -> tuple[Fields, Fields]:
    """What is said of the rotary embedding: of all layers, and of the sliding ones where that is said apart."""
    said = fields.within("rope_parameters") or fields.within("rope_scaling") or Fields({})
    full = said.within("full_attention")
    return (said, Fields({})) if full is None else (full, said.within("sliding_attention") or Fields({}))


def _sliding_theta(fields: Fields) -> float | None:
    """The base of the sliding layers' own rotary embedding; None where they share the others'."""
    sliding = _scalings(fields)[1]
    if _kind(sliding) != "default":
        raise ValueError("its sliding layers have a scaled rotary embedding, which is not supported")
    theta = sliding.optional_real("rope_theta", 1.0, 1e12)
    return fields.optional_real("rope_local_base_freq", 1.0, 1e12) if theta is None else theta


def _rope(fields: Fields, head_dim: int) -> tuple[Rope, int]:
    """The rotary embedding of layers that see everything, and the longest context."""
    scaling, _ = _scalings(fields)
    theta = (fields if scaling.optional_real("rope_theta", 1.0, 1e12) is None else scaling).real(
        "rope_theta", 1.0, 1e12
    )
    max_position = fields.integer("max_position_embeddings", most=1 << 27)
    for owner in (fields, scaling):
        if owner.real("partial_rotary_factor", 0.0, 1.0, default=1.0) != 1.0:
            raise ValueError("it rotates only part of each head, which is not supported; choose another model")
    kind = _kind(scaling)
    if kind == "default":
        return Rope(theta=theta), max_position
    factor = scaling.real("factor", 1e-3, 1e6)
    if kind == "linear":
        return Rope(theta=theta, factors=linear_factors(head_dim, factor)), max_position
    original = scaling.integer(
        "original_max_position_embeddings",
        most=1 << 27,
        default=fields.integer("original_max_position_embeddings", most=1 << 27, default=max_position),
    )
    if kind == "llama3":
        low, high = (scaling.real(f"{end}_freq_factor", 1e-6, 1e6) for end in ("low", "high"))
        if low >= high:
            raise ValueError("low_freq_factor is not below high_freq_factor; use a complete model file")
        factors = llama3_factors(head_dim, theta, factor=factor, low=low, high=high, original=original)
        return Rope(theta=theta, factors=factors), max_position
    if kind == "yarn":
        return _yarn(scaling, head_dim, theta, factor, original), max(max_position, int(original * factor))
    raise ValueError(
        f"its rotary embedding is scaled by {kind[:40]!r}; supported are linear, llama3 and yarn: remove the "
        "scaling, or choose another model"
    )


def _yarn(scaling: Fields, head_dim: int, theta: float, factor: float, original: int) -> Rope:
    if theta <= 1.0:
        raise ValueError("rope_theta must be above 1 for YaRN; use a complete model file")
    factors = yarn_factors(
        head_dim,
        theta,
        factor=factor,
        original=original,
        beta_fast=scaling.optional_real("beta_fast", 1e-3, 1e6) or 32.0,
        beta_slow=scaling.optional_real("beta_slow", 1e-3, 1e6) or 1.0,
        truncate=scaling.flag("truncate", default=True),
    )
    magnitude = scaling.optional_real("attention_factor", 1e-3, 1e3)
    if magnitude is None:
        numerator, denominator = (scaling.optional_real(key, 0.0, 1e3) for key in ("mscale", "mscale_all_dim"))
        if numerator and denominator:
            magnitude = yarn_magnitude(factor, numerator) / yarn_magnitude(factor, denominator)
        else:
            magnitude = yarn_magnitude(factor)
    return Rope(theta=theta, factors=factors, magnitude=magnitude)


def _kind(scaling: Fields) -> str:
    return scaling.text("rope_type") or scaling.text("type") or "default"
