"""Models in GGUF files: quantised blocks to float32 weights under Hugging Face names.

The file is untrusted: whatever is wrong with it becomes one ModelFileError that names the file, the fault and the
remedy. Tensors are checked against the model's shape before any is read, then read and dequantised a slab at a
time, so that memory peaks little above the float32 size.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from orchestra.localengine.capacity import available_memory, human, weight_bytes
from orchestra.localengine.errors import ModelFileError
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.tokenizer import Tokenizer
from orchestra.localengine.weights.container import DAMAGED, Container, TensorRecord, read_container
from orchestra.localengine.weights.files import ModelFiles

if TYPE_CHECKING:
    import torch

__all__ = ["load_gguf", "read_gguf_spec"]

_SLAB_VALUES = 1 << 18  # numbers dequantised at once: as many as the processor's cache holds


def load_gguf(path: Path) -> ModelFiles:
    """Read a whole model into memory as float32. Raises ModelFileError."""
    with _naming(path), path.open("rb") as file:
        container = read_container(file)
        spec = _spec(container)
        names = _tensor_names(spec)
        _check_tensors(container, names)
        _check_memory(spec)
        tokenizer = Tokenizer.from_gguf(container.metadata)
        if tokenizer.vocab_size != spec.vocab_size:
            raise ValueError(
                f"its tokenizer has {tokenizer.vocab_size} tokens, its embedding {spec.vocab_size} rows; {DAMAGED}"
            )
        heads = {"attn_q": spec.num_heads, "attn_k": spec.num_kv_heads}
        weights = {}
        for gguf_name, (name, _) in names.items():
            tensor = _read_tensor(file, container.tensors[gguf_name])
            rotary_heads = heads.get(gguf_name.split(".")[-2])
            weights[name] = tensor if rotary_heads is None else _half_rotation(tensor, rotary_heads)
        return ModelFiles(
            name=_text(container.metadata, "general.name") or path.stem,
            spec=spec,
            weights=weights,
            tokenizer=tokenizer,
            chat_template=_text(container.metadata, "tokenizer.chat_template"),
        )


def read_gguf_spec(path: Path) -> ModelSpec:
    """The model's shape, from the file's header alone (no torch, a tenth of a second). Raises ModelFileError."""
    with _naming(path), path.open("rb") as file:
        return _spec(read_container(file))


# Metadata to spec


def _spec(container: Container) -> ModelSpec:
    metadata = container.metadata
    architecture = _text(metadata, "general.architecture")
    if architecture != "llama":
        raise ValueError(
            f"its architecture is {architecture!r}; only 'llama' models are supported, choose one of those"
        )
    _refuse_variants(metadata)
    embedding = container.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ValueError(f"it has no embedding matrix (token_embd.weight); {DAMAGED}")
    hidden_size = _integer(metadata, "llama.embedding_length", most=1 << 17)
    num_heads = _integer(metadata, "llama.attention.head_count", most=1 << 12)
    spec = ModelSpec(
        architecture="llama",
        vocab_size=embedding.shape[0],
        hidden_size=hidden_size,
        intermediate_size=_integer(metadata, "llama.feed_forward_length", most=1 << 20),
        num_layers=_integer(metadata, "llama.block_count", most=1 << 10),
        num_heads=num_heads,
        num_kv_heads=_integer(metadata, "llama.attention.head_count_kv", most=1 << 12, default=num_heads),
        head_dim=_integer(metadata, "llama.attention.key_length", most=1 << 12, default=hidden_size // num_heads),
        max_position=_integer(metadata, "llama.context_length", most=1 << 27),
        rms_norm_eps=_real(metadata, "llama.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope_theta=_real(metadata, "llama.rope.freq_base", 1.0, 1e12, default=10_000.0),
        tie_embeddings="output.weight" not in container.tensors,
    )
    if spec.num_heads % spec.num_kv_heads or spec.head_dim % 2 or spec.head_dim < 2:
        raise ValueError(
            f"{spec.num_heads} query heads, {spec.num_kv_heads} key heads of {spec.head_dim} numbers do not go "
            f"together; {DAMAGED}"
        )
    for key in ("llama.rope.dimension_count", "llama.attention.value_length"):
        if (width := _integer(metadata, key, most=1 << 12, default=spec.head_dim)) != spec.head_dim:
            raise ValueError(
                f"{key} is {width} but a head has {spec.head_dim} numbers; choose a plain Llama model"
            )
    return spec


def _refuse_variants(metadata: Mapping[str, object]) -> None:
    """Kinds of Llama that would load and then answer nonsense, because the forward pass does not know them."""
    plain: dict[str, tuple[object, ...]] = {
        "split.count": (0, 1),
        "llama.expert_count": (0,),
        "llama.attention.sliding_window": (0,),
        "llama.rope.scaling.type": ("none",),
        "llama.rope.scale_linear": (1.0,),
        "llama.logit_scale": (1.0,),
    }
    for key, accepted in plain.items():
        if key in metadata and metadata[key] not in accepted:
            remedy = "merge its parts into one file" if key == "split.count" else "choose a plain Llama model"
            raise ValueError(f"it has {key} = {metadata[key]!r}, which is not supported; {remedy}")


def _text(metadata: Mapping[str, object], key: str) -> str | None:
    value = metadata.get(key)
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"{key} is not a text; {DAMAGED}")


def _integer(metadata: Mapping[str, object], key: str, *, most: int, default: int | None = None) -> int:
    value = metadata.get(key, default)
    if value is None:
        raise ValueError(f"it has no {key}; use a complete model file")
    if isinstance(value, array | list):
        raise ValueError(f"{key} differs from layer to layer, which is not supported; choose a plain Llama model")
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{key} is {value!r}, not a whole number from 1 to {most}; {DAMAGED}")
    return value


def _real(
    metadata: Mapping[str, object], key: str, least: float, most: float, *, default: float | None = None
) -> float:
    value = metadata.get(key, default)
    if value is None:
        raise ValueError(f"it has no {key}; use a complete model file")
    if not isinstance(value, float) or not least <= value <= most:  # NaN fails this, too
        raise ValueError(f"{key} is {value!r}, not a number from {least:g} to {most:g}; {DAMAGED}")
    return value


# Tensors


def _tensor_names(spec: ModelSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
    """GGUF name -> (Hugging Face name, shape) of every tensor that a model of this shape has."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer = {
        "attn_norm": ("input_layernorm", (hidden,)),
        "attn_q": ("self_attn.q_proj", (queries, hidden)),
        "attn_k": ("self_attn.k_proj", (keys, hidden)),
        "attn_v": ("self_attn.v_proj", (keys, hidden)),
        "attn_output": ("self_attn.o_proj", (hidden, queries)),
        "ffn_norm": ("post_attention_layernorm", (hidden,)),
        "ffn_gate": ("mlp.gate_proj", (inner, hidden)),
        "ffn_up": ("mlp.up_proj", (inner, hidden)),
        "ffn_down": ("mlp.down_proj", (hidden, inner)),
    }
    names: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd.weight": ("model.embed_tokens.weight", (spec.vocab_size, hidden)),
        "output_norm.weight": ("model.norm.weight", (hidden,)),
    }
    if not spec.tie_embeddings:
        names["output.weight"] = ("lm_head.weight", (spec.vocab_size, hidden))
    for i in range(spec.num_layers):
        for short, (name, shape) in layer.items():
            names[f"blk.{i}.{short}.weight"] = (f"model.layers.{i}.{name}.weight", shape)
    return names


def _check_tensors(container: Container, names: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """The file has exactly these tensors, of these shapes, of types that can be read, each wholly inside it."""
    for name, record in container.tensors.items():
        if name not in names:
            raise ValueError(f"tensor {name!r} is not part of a plain Llama model; choose one of those")
        if record.shape != (wanted := names[name][1]):
            raise ValueError(
                f"tensor {name!r} has shape {record.shape} where the metadata say {wanted}; {DAMAGED}"
            )
        if record.offset + math.prod(record.shape[:-1]) * _row_bytes(record) > container.size:
            raise ValueError(f"it ends inside tensor {name!r}; {DAMAGED}")
    if missing := names.keys() - container.tensors.keys():
        raise ValueError(f"it lacks {len(missing)} tensors, such as {min(missing)!r}; {DAMAGED}")


def _check_memory(spec: ModelSpec) -> None:
    """Tensors that overlap in the file, or are packed tightly, can ask for a thousand times its size.

    Where memory is promised and not there, the system ends the process without a word.
    """
    needed, free = weight_bytes(spec), available_memory()
    if needed > free:
        raise ValueError(
            f"its weights take {human(needed)} of memory and {human(free)} are free; choose a smaller model"
        )


def _row_bytes(record: TensorRecord) -> int:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(record.type_id)
    except ValueError:
        raise ValueError(f"tensor {record.name!r} has unknown type {record.type_id}; {DAMAGED}") from None
    block_values, block_bytes = GGML_QUANT_SIZES[kind]
    blocks, rest = divmod(record.shape[-1], block_values)
    if rest:
        raise ValueError(f"rows of tensor {record.name!r} are no whole number of {kind.name} blocks; {DAMAGED}")
    return blocks * block_bytes


def _read_tensor(file: BinaryIO, record: TensorRecord) -> torch.Tensor:
    """One tensor as contiguous float32, of ``record.shape``."""
    import numpy as np
    import torch
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(record.type_id)
    block_values, block_bytes = GGML_QUANT_SIZES[kind]
    slab = max(1, _SLAB_VALUES // block_values) * block_values
    values = np.empty(math.prod(record.shape), dtype=np.float32)
    file.seek(record.offset)
    for start in range(0, len(values), slab):
        part = values[start : start + slab]
        data = file.read(len(part) // block_values * block_bytes)
        if len(data) != len(part) // block_values * block_bytes:
            raise ValueError(f"it ends inside tensor {record.name!r}; {DAMAGED}")
        try:
            with np.errstate(all="ignore"):  # what is not finite is reported below
                part[:] = dequantize(np.frombuffer(data, np.uint8).reshape(1, -1), kind)[0]
                finite = np.isfinite(part.sum())
        except NotImplementedError:
            raise ValueError(
                f"tensor {record.name!r} has type {kind.name}, which cannot be read; choose a file in Q8_0 or F16"
            ) from None
        if not finite:
            raise ValueError(f"tensor {record.name!r} holds numbers that are not finite; {DAMAGED}")
    return torch.from_numpy(values.reshape(record.shape))


def _half_rotation(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the row order that GGUF gives to query and key projections of Llama models.

    GGUF pairs neighbouring rows for the rotary embedding (0 with 1, 2 with 3, ...); Hugging Face pairs row i of a
    head with row i + head_dim / 2.
    """
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width).contiguous()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be read ({error.strerror or error}): check the path and its permissions"
        ) from error
    except (ValueError, MemoryError) as error:
        fault = "it does not fit into memory; choose a smaller model" if isinstance(error, MemoryError) else error
        raise ModelFileError(f"{path} cannot be used as a model: {fault}") from error
