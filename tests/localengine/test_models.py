"""From published configurations to specs: known parameter counts, and what sets each family apart."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestra.localengine.models.capacity import kv_bytes_per_token, weight_values
from orchestra.localengine.models.layout import tensor_shapes
from orchestra.localengine.models.rope import llama3_factors, yarn_factors, yarn_magnitude
from orchestra.localengine.models.spec import LayerKind, ModelSpec, Rope
from orchestra.localengine.weights.hub_config import spec_of_config


def sizes(
    hidden: int, width: int, layers: int, heads: int, kv_heads: int, vocab: int, **rest: Any
) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        **rest,
    }


LLAMA3 = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
# as these models' config.json files say it, older and newer keys alike, and how many parameters they have
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-2-7B": (
        {"model_type": "llama", "rope_scaling": None, **sizes(4096, 11_008, 32, 32, 32, 32_000)},
        6_738_415_616,
    ),
    "Llama-3.2-1B": (
        {
            "model_type": "llama",
            "rope_scaling": LLAMA3,
            "rope_theta": 500_000.0,
            "max_position_embeddings": 131_072,
            "tie_word_embeddings": True,
            "head_dim": 64,
            **sizes(2048, 8192, 16, 32, 8, 128_256),
        },
        1_235_814_400,
    ),
    "SmolLM3-3B": (
        {
            "model_type": "smollm3",
            "no_rope_layers": [1, 1, 1, 0] * 9,
            "rope_theta": 5_000_000.0,
            "max_position_embeddings": 65_536,
            **sizes(2048, 11_008, 36, 16, 4, 128_256),
        },
        3_075_098_624,
    ),
    "Mistral-7B-v0.1": (
        {"model_type": "mistral", "sliding_window": 4096, **sizes(4096, 14_336, 32, 32, 8, 32_000)},
        7_241_732_096,
    ),
    "Qwen2.5-0.5B": (
        {
            "model_type": "qwen2",
            "rope_theta": 1_000_000.0,
            "sliding_window": 32_768,
            "max_window_layers": 21,
            "use_sliding_window": False,
            "tie_word_embeddings": True,
            **sizes(896, 4864, 24, 14, 2, 151_936),
        },
        494_032_768,
    ),
    "Qwen3-0.6B": (
        {
            "model_type": "qwen3",
            "head_dim": 128,
            "attention_bias": False,
            "tie_word_embeddings": True,
            **sizes(1024, 3072, 28, 16, 8, 151_936),
        },
        596_049_920,
    ),
    "gemma-2-2b": (
        {"model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh", **sizes(2304, 9216, 26, 8, 4, 256_000)},
        2_614_341_888,
    ),
    "gemma-3-1b": (
        {
            "model_type": "gemma3_text",
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_local_base_freq": 10_000,
            "rope_theta": 1_000_000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            **sizes(1152, 6912, 26, 4, 1, 262_144),
        },
        999_885_952,
    ),
    "gemma-3-4b": (
        {
            "model_type": "gemma3",
            "vision_config": {"hidden_size": 1152},
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "intermediate_size": 10_240,
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
        },
        3_880_263_168,
    ),
}


def published(name: str) -> ModelSpec:
    return spec_of_config(PUBLISHED[name][0])


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_published_models(name: str) -> None:
    spec = published(name)
    assert weight_values(spec) == PUBLISHED[name][1]
    assert sum(math.prod(shape) for shape in tensor_shapes(spec).values()) == PUBLISHED[name][1]
    assert kv_bytes_per_token(spec) == 8 * spec.num_layers * spec.num_kv_heads * spec.head_dim


def test_what_layers_see_and_how_they_turn() -> None:
    assert {published("Llama-2-7B").layer(i) for i in range(32)} == {LayerKind(window=None, rope=Rope(theta=1e4))}
    mistral = published("Mistral-7B-v0.1")
    assert {mistral.layer(i).window for i in range(32)} == {4096}
    assert {published("Qwen2.5-0.5B").layer(i).window for i in range(24)} == {None}
    smollm3 = published("SmolLM3-3B")
    assert [i for i in range(36) if smollm3.layer(i).rope is None] == list(range(3, 36, 4))
    gemma2 = published("gemma-2-2b")
    assert [i for i in range(26) if gemma2.layer(i).window] == list(range(0, 26, 2))
    gemma3 = published("gemma-3-4b")
    assert [i for i in range(34) if gemma3.layer(i).window is None] == [5, 11, 17, 23, 29]
    assert gemma3.layer(0) == LayerKind(window=1024, rope=Rope(theta=10_000.0))
    assert gemma3.layer(5).rope == Rope(theta=1_000_000.0, factors=(8.0,) * 128)


def test_what_sets_families_apart() -> None:
    qwen2, qwen3, gemma2 = published("Qwen2.5-0.5B"), published("Qwen3-0.6B"), published("gemma-2-2b")
    assert (qwen2.qkv_bias, qwen2.out_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.out_bias, qwen3.qk_norm) == (False, False, True)
    assert (gemma2.attention_softcap, gemma2.logit_softcap, gemma2.attention_scale) == (50.0, 30.0, 1 / 16)
    assert (gemma2.post_norms, gemma2.norm_offset, gemma2.activation) == (True, 1.0, "gelu_tanh")
    assert gemma2.embedding_scale == 48.0
    gemma3 = published("gemma-3-1b")
    assert (gemma3.attention_softcap, gemma3.logit_softcap, gemma3.qk_norm) == (None, None, True)


def test_newer_keys_say_the_same() -> None:
    old = PUBLISHED["gemma-3-1b"][0]
    new = {key: value for key, value in old.items() if key not in ("rope_theta", "sliding_window_pattern")}
    new["layer_types"] = [("full" if i % 6 == 5 else "sliding") + "_attention" for i in range(26)]
    new["rope_parameters"] = {
        "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    del new["rope_local_base_freq"]
    assert spec_of_config(new) == spec_of_config(old)
    old = PUBLISHED["Llama-3.2-1B"][0]
    new = {**old, "rope_theta": None, "rope_scaling": None, "rope_parameters": {**LLAMA3, "rope_theta": 500_000.0}}
    assert spec_of_config(new) == spec_of_config(old)


def test_yarn_lengthens_the_context() -> None:
    config = {
        **PUBLISHED["Qwen2.5-0.5B"][0],
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768},
    }
    spec = spec_of_config(config)
    assert spec.max_position == 131_072
    assert spec.rope_magnitude == pytest.approx(0.1 * math.log(4) + 1)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"layer_types": ["sliding_attention"] * 3}, "layer_types must say"),
        ({"layer_types": ["chunked_attention"] * 26}, "layer_types must say"),
        ({"layer_types": "sliding"}, "layer_types is 'sliding', not a list"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is set"),
        ({"sliding_window": 0}, "sliding_window is 0"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
        ({"attn_logit_softcapping": -1.0}, "attn_logit_softcapping is -1.0"),
        (
            {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "yarn"}}},
            "sliding layers",
        ),
    ],
)
def test_configs_that_make_no_sense(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        spec_of_config({**PUBLISHED["gemma-3-1b"][0], **changes})


def test_a_spec_checks_itself() -> None:
    spec = published("Llama-2-7B")
    base = {name: getattr(spec, name) for name in ModelSpec.__dataclass_fields__}
    for changes in (
        {"num_kv_heads": 5},
        {"head_dim": 63},
        {"rope_factors": (1.0,)},
        {"sliding_layers": frozenset({0})},
    ):
        with pytest.raises(ValueError, match=r"go together|rotary factors|need its width"):
            ModelSpec(**{**base, **changes})


def test_scaled_ropes_leave_fast_pairs_alone_and_stretch_slow_ones_wholly() -> None:
    for factors in (
        llama3_factors(128, 500_000.0, factor=8.0, low=1.0, high=4.0, original=8192),
        yarn_factors(128, 1_000_000.0, factor=8.0, original=32_768),
    ):
        assert factors[0] == 1.0
        assert factors[-1] == pytest.approx(8.0)
        assert list(factors) == sorted(factors)
        assert len({round(f, 6) for f in factors}) > 5
    assert yarn_magnitude(1.0) == 1.0
