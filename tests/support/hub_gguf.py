"""The tiny models of ``hub_lab`` as GGUF files, as llama.cpp converts them, by the ``gguf`` library's names."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from gguf import MODEL_ARCH, GGUFWriter, get_tensor_name_map
from hub_lab import CONTROL, byte_level
from transformers import PreTrainedModel

from orchestra.localengine.text.tokenizer import TokenKind

__all__ = ["make_gguf"]

_ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA,
    "mistral": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
    "smollm3": MODEL_ARCH.SMOLLM3,
    "gemma2": MODEL_ARCH.GEMMA2,
    "gemma3_text": MODEL_ARCH.GEMMA3,
}
_NAMES = {MODEL_ARCH.LLAMA: "llama", MODEL_ARCH.QWEN2: "qwen2", MODEL_ARCH.QWEN3: "qwen3"}
_NAMES |= {MODEL_ARCH.SMOLLM3: "smollm3", MODEL_ARCH.GEMMA2: "gemma2", MODEL_ARCH.GEMMA3: "gemma3"}


def make_gguf(model: PreTrainedModel, path: Path) -> Path:
    config = model.config
    arch = _ARCHITECTURES[config.model_type]
    writer = GGUFWriter(path, _NAMES[arch])
    writer.add_name("Tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(model.model.layers[0].self_attn.head_dim)
    writer.add_value_length(model.model.layers[0].self_attn.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    _add_rope(model, writer)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if arch == MODEL_ARCH.GEMMA2:
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    _add_tokenizer(config.vocab_size, writer)

    names = get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.detach().float()
        if name.endswith("norm.weight") and config.model_type.startswith("gemma"):
            values = values + 1
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in name and arch == MODEL_ARCH.LLAMA:
                rest = values.shape[1:]
                values = values.reshape(heads, 2, -1, *rest).transpose(1, 2).reshape(-1, *rest)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        writer.add_tensor(gguf_name, values.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_rope(model: PreTrainedModel, writer: GGUFWriter) -> None:
    parameters = model.config.rope_parameters
    parameters = parameters.get("full_attention", parameters)
    writer.add_rope_freq_base(parameters["rope_theta"])
    kind = parameters["rope_type"]
    if kind == "llama3":
        rotary = model.model.rotary_emb
        plain = parameters["rope_theta"] ** (-torch.arange(0, 1, 1 / len(rotary.inv_freq)).double())
        writer.add_tensor("rope_freqs.weight", (plain / rotary.inv_freq.double()).float().numpy())
    elif kind != "default":
        from gguf import RopeScalingType

        writer.add_rope_scaling_type(RopeScalingType(kind))
        writer.add_rope_scaling_factor(parameters["factor"])
        if kind == "yarn":
            writer.add_rope_scaling_orig_ctx_len(parameters["original_max_position_embeddings"])


def _add_tokenizer(vocab_size: int, writer: GGUFWriter) -> None:
    tokenizer = byte_level()
    ids = tokenizer.get_vocab()
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    kinds = [int(TokenKind.UNUSED)] * vocab_size
    for text, i in ids.items():
        tokens[i] = text
        written = TokenKind.USER_DEFINED if "think" in text else TokenKind.NORMAL
        kinds[i] = int(TokenKind.CONTROL if text in CONTROL else written)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(m) for m in json.loads(tokenizer.to_str())["model"]["merges"]])
    writer.add_bos_token_id(ids["<s>"])
    writer.add_eos_token_id(ids["</s>"])
