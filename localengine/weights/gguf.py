"""Models in GGUF files: quantised blocks to float32 weights under Hugging Face names.

The file is untrusted: whatever is wrong with it becomes one ModelFileError that names the file, the fault and the
remedy. Tensors are checked against the model's shape before any is read, then read and dequantised a slab at a
time, so that memory peaks little above the float32 size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from orchestra.localengine.models.layout import EMBEDDING, HEAD, NORM, layer_shapes, tensor_shapes
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.weights.container import Container, TensorRecord, read_container
from orchestra.localengine.weights.fields import DAMAGED, Fields
from orchestra.localengine.weights.files import ModelFiles, Placing, check_memory, naming
from orchestra.localengine.weights.gguf_spec import spec_of_metadata
from orchestra.localengine.weights.gguf_tokenizer import gguf_tokenizer

if TYPE_CHECKING:
    import torch

__all__ = ["load_gguf", "read_gguf_spec"]

_SLAB_VALUES = 1 << 18  # numbers dequantised at once: as many as the processor's cache holds
_ROPE_FACTORS = "rope_freqs.weight"

# Hugging Face name, within a layer -> GGUF name
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_PLAIN_NORMS = {"post_attention_layernorm": "ffn_norm"}
_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def load_gguf(path: Path, placing: Placing | None = None) -> ModelFiles:
    """Read a whole model into memory as float32, or where ``placing`` puts it. Raises ModelFileError."""
    with naming(path), path.open("rb") as file:
        container = read_container(file)
        spec = _spec(file, container)
        names, shapes = _tensor_names(spec), tensor_shapes(spec)
        _check_tensors(container, spec, {gguf_name: shapes[name] for gguf_name, name in names.items()})
        (check_memory if placing is None else placing.check_memory)(spec)
        tokenizer = gguf_tokenizer(container.metadata)
        if tokenizer.vocab_size != spec.vocab_size:
            raise ValueError(
                f"its tokenizer has {tokenizer.vocab_size} tokens, its embedding {spec.vocab_size} rows; {DAMAGED}"
            )
        # only models of this architecture have their queries and keys in another order than Hugging Face's
        pairwise = {"attn_q": spec.num_heads, "attn_k": spec.num_kv_heads} if spec.architecture == "llama" else {}
        weights = {}
        for gguf_name, name in names.items():
            tensor = _read_tensor(file, container.tensors[gguf_name])
            heads = pairwise.get(gguf_name.split(".")[-2])
            tensor = tensor if heads is None else _half_rotation(tensor, heads)
            weights[name] = tensor if placing is None else placing.place(name, tensor)
        if placing is not None:
            placing.check_numbers()
        fields = Fields(container.metadata)
        return ModelFiles(
            name=fields.text("general.name") or path.stem,
            spec=spec,
            weights=weights,
            tokenizer=tokenizer,
            chat_template=fields.text("tokenizer.chat_template"),
        )


def read_gguf_spec(path: Path) -> ModelSpec:
    """The model's shape, from the file's header alone (a tenth of a second). Raises ModelFileError."""
    with naming(path), path.open("rb") as file:
        return _spec(file, read_container(file))


def _spec(file: BinaryIO, container: Container) -> ModelSpec:
    embedding = container.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ValueError(f"it has no embedding matrix (token_embd.weight); {DAMAGED}")
    factors: tuple[float, ...] = ()
    record = container.tensors.get(_ROPE_FACTORS)
    if record is not None:
        if len(record.shape) != 1 or record.shape[0] > 1 << 12:
            raise ValueError(f"{_ROPE_FACTORS} has shape {record.shape}; {DAMAGED}")
        factors = tuple(_read_tensor(file, record).tolist())
        if not all(1e-6 <= factor <= 1e6 for factor in factors):
            raise ValueError(f"{_ROPE_FACTORS} holds numbers that are no factors; {DAMAGED}")
    return spec_of_metadata(
        container.metadata,
        vocab_size=embedding.shape[0],
        rope_factors=factors,
        tie_embeddings="output.weight" not in container.tensors,
        qkv_bias="blk.0.attn_q.bias" in container.tensors,
        out_bias="blk.0.attn_output.bias" in container.tensors,
    )


def _tensor_names(spec: ModelSpec) -> dict[str, str]:
    """GGUF name -> Hugging Face name of every tensor that a model of this shape has."""
    names = {"token_embd.weight": EMBEDDING, "output_norm.weight": NORM}
    if not spec.tie_embeddings:
        names["output.weight"] = HEAD
    inner = _LAYER_NAMES | (_POST_NORMS if spec.post_norms else _PLAIN_NORMS)
    for name in layer_shapes(spec):
        stem, _, suffix = name.rpartition(".")
        for i in range(spec.num_layers):
            names[f"blk.{i}.{inner[stem]}.{suffix}"] = f"model.layers.{i}.{name}"
    return names


def _check_tensors(container: Container, spec: ModelSpec, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """The file has exactly these tensors, of these shapes, of types that can be read, each wholly inside it."""
    for name, record in container.tensors.items():
        if name == _ROPE_FACTORS:  # read already
            continue
        if name not in shapes:
            raise ValueError(
                f"tensor {name!r} is not part of a plain {spec.architecture} model; choose one of those"
            )
        if record.shape != (wanted := shapes[name]):
            raise ValueError(
                f"tensor {name!r} has shape {record.shape} where the metadata say {wanted}; {DAMAGED}"
            )
        if record.offset + math.prod(record.shape[:-1]) * _row_bytes(record) > container.size:
            raise ValueError(f"it ends inside tensor {name!r}; {DAMAGED}")
    if missing := shapes.keys() - container.tensors.keys():
        raise ValueError(f"it lacks {len(missing)} tensors, such as {min(missing)!r}; {DAMAGED}")


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
    rows, *rest = weight.shape  # a bias has rows only
    return weight.view(heads, rows // heads // 2, 2, *rest).transpose(1, 2).reshape(rows, *rest).contiguous()
