"""A tiny Llama in a GGUF file, written by the `gguf` library, with every part open to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType, GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

from orchestra.localengine.text.tokenizer import TokenKind

F32 = GGMLQuantizationType.F32


def byte_alphabet() -> list[str]:
    """GPT-2's character for each byte, by its rule: printable Latin-1 stays, the others follow from U+0100."""
    chars, spare = [], 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            chars.append(chr(byte))
        else:
            chars.append(chr(256 + spare))
            spare += 1
    return chars


def written(text: str) -> str:
    """``text`` as a byte-level vocabulary writes it."""
    alphabet = byte_alphabet()
    return "".join(alphabet[b] for b in text.encode())


CONTROL = ("<|end|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o")
TOKENS = (*CONTROL, *byte_alphabet(), "he", "ll", "hell", "hello", "Ġw", "Ġwo")
KINDS = (*[TokenKind.CONTROL] * len(CONTROL), *[TokenKind.NORMAL] * (len(TOKENS) - len(CONTROL)))


@dataclass
class TinyGguf:
    """Change what a test wants changed, then ``write``.

    ``weights`` are float32 arrays under GGUF names; ``metadata`` overrides keys (None removes one).
    """

    layers: int = 2
    hidden: int = 64
    inner: int = 96
    heads: int = 4
    kv_heads: int = 2
    tied: bool = True
    kind: GGMLQuantizationType = F32
    architecture: str = "llama"
    tokens: Sequence[str] = TOKENS
    merges: Sequence[str] = MERGES
    kinds: Sequence[int] = KINDS
    metadata: Mapping[str, tuple[Any, GGUFValueType] | None] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        keys = self.hidden // self.heads * self.kv_heads
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(self.tokens), self.hidden)}
        for i in range(self.layers):
            shapes |= {
                f"blk.{i}.attn_norm.weight": (self.hidden,),
                f"blk.{i}.attn_q.weight": (self.hidden, self.hidden),
                f"blk.{i}.attn_k.weight": (keys, self.hidden),
                f"blk.{i}.attn_v.weight": (keys, self.hidden),
                f"blk.{i}.attn_output.weight": (self.hidden, self.hidden),
                f"blk.{i}.ffn_norm.weight": (self.hidden,),
                f"blk.{i}.ffn_gate.weight": (self.inner, self.hidden),
                f"blk.{i}.ffn_up.weight": (self.inner, self.hidden),
                f"blk.{i}.ffn_down.weight": (self.hidden, self.inner),
            }
        shapes["output_norm.weight"] = (self.hidden,)
        if not self.tied:
            shapes["output.weight"] = (len(self.tokens), self.hidden)
        self.weights = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}

    def kind_of(self, name: str) -> GGMLQuantizationType:
        """Norms stay float32, as in real files."""
        return F32 if self.weights[name].ndim == 1 else self.kind

    def write(self, path: Path) -> Path:
        u32, f32, text = GGUFValueType.UINT32, GGUFValueType.FLOAT32, GGUFValueType.STRING
        array = GGUFValueType.ARRAY
        keys: dict[str, tuple[Any, GGUFValueType] | None] = {
            "general.name": ("Tiny", text),
            "llama.block_count": (self.layers, u32),
            "llama.context_length": (128, u32),
            "llama.embedding_length": (self.hidden, u32),
            "llama.feed_forward_length": (self.inner, u32),
            "llama.attention.head_count": (self.heads, u32),
            "llama.attention.head_count_kv": (self.kv_heads, u32),
            "llama.attention.layer_norm_rms_epsilon": (1e-5, f32),
            "llama.rope.freq_base": (10_000.0, f32),
            "tokenizer.ggml.model": ("gpt2", text),
            "tokenizer.ggml.pre": ("smollm", text),
            "tokenizer.ggml.tokens": (list(self.tokens), array),
            "tokenizer.ggml.token_type": ([int(k) for k in self.kinds], array),
            "tokenizer.ggml.merges": (list(self.merges), array),
            "tokenizer.ggml.bos_token_id": (1, u32),
            "tokenizer.ggml.eos_token_id": (2, u32),
            "tokenizer.chat_template": ("{{ messages[0].content }}", text),
        }
        writer = GGUFWriter(path, self.architecture)
        for key, entry in {**keys, **self.metadata}.items():
            if entry is None:
                continue
            value, kind = entry
            writer.add_key_value(key, value, kind)
        for name, values in self.weights.items():
            kind = self.kind_of(name)
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path
