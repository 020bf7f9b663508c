"""Tiny models as hubs publish them, made by transformers with random weights, and its answers to compare with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

__all__ = [
    "CORPUS",
    "SIZES",
    "byte_level",
    "make_folder",
    "make_model",
    "reference_logits",
    "sentencepiece",
    "unigram",
]

VOCABULARY = 320
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CONTROL = ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "def add(a, b):\n    return a + b  # 12345",
    "Où est la bibliothèque ? Straße, naïve café, déjà vu.",
    "שלום עולם مرحبا بالعالم こんにちは世界 привет мир 😀👍🏽",
    "a\tb\r\nc   d\n\n\ne {'key': [1, 2, 3]} <html></html>",
]


def make_model(model_type: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model, in float32 and with no vector at its default, so that whatever is left out shows."""
    config = AutoConfig.for_model(model_type, **{**SIZES, **changes})
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) * 0.2)
                if name == "model.norm.weight" and model_type.startswith("gemma"):
                    weight.add_(12.0)  # logits as large as the others', behind small embeddings
            else:
                # small embeddings, so that a tied head does not answer with the last token again
                embedded = 0.3 / config.hidden_size**0.5 if model_type.startswith("gemma") else 0.3
                scale = embedded if "embed" in name else 1.6 / weight.shape[1] ** 0.5
                weight.copy_(torch.randn_like(weight) * scale)
    return model


def make_folder(model: PreTrainedModel, folder: Path, tokenizer: Tokenizer | None = None, **save: Any) -> Path:
    """The model on disk, as ``save_pretrained`` writes it, with a tokenizer."""
    model.save_pretrained(folder, **save)
    (tokenizer or byte_level()).save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def reference_logits(model: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """What transformers computes for one sequence, all at once: float32 [len(ids), vocab]."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([list(ids)])).logits[0]
    return logits


def byte_level() -> Tokenizer:
    """GPT-2's kind, with control tokens and one that is written text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return tokenizer


def sentencepiece(prepend: str = "always") -> Tokenizer:
    """Llama 2's kind: BPE over characters that falls back to bytes, a space before a text (``prepend``)."""
    pieces = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256))]
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    trainer = trainers.BpeTrainer(vocab_size=220, special_tokens=[], limit_alphabet=60, show_progress=False)
    trained.train_from_iterator(CORPUS * 3, trainer)
    state = json.loads(trained.to_str())["model"]
    for text in sorted(state["vocab"], key=state["vocab"].__getitem__):
        if text not in pieces:
            pieces.append(text)
    model = models.BPE(
        vocab={text: i for i, text in enumerate(pieces)},
        merges=[tuple(m) for m in state["merges"]],
        unk_token="<pad>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    if prepend == "legacy":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    strip = [] if prepend == "never" else [decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return _finished(tokenizer)


def unigram() -> Tokenizer:
    """SentencePiece's other kind: the likeliest pieces by their scores, bytes where there are none."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=[*CONTROL, "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 20, trainer)
    state = json.loads(tokenizer.to_str())["model"]
    known = [tuple(piece) for piece in state["vocab"]]
    extra = [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    tokenizer.model = models.Unigram([*known, *extra], state["unk_id"], True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    return _finished(tokenizer)


def _finished(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer
