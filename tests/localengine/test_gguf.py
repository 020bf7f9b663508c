"""Reading GGUF: right numbers from a right file, one clear error from any other."""

from __future__ import annotations

import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFValueType
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_gguf import TOKENS, TinyGguf

from orchestra.localengine.errors import ModelFileError
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.weights import files as shared
from orchestra.localengine.weights import gguf as loader
from orchestra.localengine.weights.files import ModelFiles
from orchestra.localengine.weights.gguf import load_gguf, read_gguf_spec

RELAXED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]  # which measures the machine
U32, F32, TEXT = GGUFValueType.UINT32, GGUFValueType.FLOAT32, GGUFValueType.STRING
Kind = GGMLQuantizationType


@pytest.fixture(scope="module")
def tiny_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return TinyGguf(layers=1).write(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


def test_the_spec_and_names_come_from_the_file(tmp_path: Path) -> None:
    path = TinyGguf().write(tmp_path / "tiny.gguf")
    files = load_gguf(path)
    assert files.spec == read_gguf_spec(path)
    assert files.spec == ModelSpec(
        architecture="llama",
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position=128,
        rms_norm_eps=pytest.approx(1e-5),
        rope_theta=10_000.0,
        tie_embeddings=True,
    )
    assert files.spec.kv_values_per_token == 2 * 2 * 2 * 16
    assert files.name == "Tiny"
    assert files.chat_template == "{{ messages[0].content }}"
    assert files.tokenizer.encode("hello", special=False) == [TOKENS.index("hello")]
    assert "lm_head.weight" not in files.weights
    assert files.weights["model.layers.1.mlp.down_proj.weight"].shape == (64, 96)
    for name, tensor in files.weights.items():
        assert (tensor.dtype, tensor.is_contiguous()) == (torch.float32, True), name


def test_weights_carry_over_unchanged_but_for_the_row_order_of_queries_and_keys(tmp_path: Path) -> None:
    tiny = TinyGguf(tied=False)
    weights = load_gguf(tiny.write(tmp_path / "tiny.gguf")).weights
    assert len(weights) == len(tiny.weights)
    pairs = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
        "model.layers.1.input_layernorm.weight": "blk.1.attn_norm.weight",
        "model.layers.1.post_attention_layernorm.weight": "blk.1.ffn_norm.weight",
        "model.layers.1.self_attn.v_proj.weight": "blk.1.attn_v.weight",
        "model.layers.1.self_attn.o_proj.weight": "blk.1.attn_output.weight",
        "model.layers.1.mlp.gate_proj.weight": "blk.1.ffn_gate.weight",
        "model.layers.1.mlp.up_proj.weight": "blk.1.ffn_up.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
    }
    for ours, theirs in pairs.items():
        assert np.array_equal(weights[ours].numpy(), tiny.weights[theirs]), ours


def test_query_and_key_rows_rotate_in_halves_as_the_files_rows_rotate_in_pairs(tmp_path: Path) -> None:
    tiny = TinyGguf()
    weights = load_gguf(tiny.write(tmp_path / "tiny.gguf")).weights
    for ours, theirs, heads in (("q_proj", "attn_q", 4), ("k_proj", "attn_k", 2)):
        mine = weights[f"model.layers.0.self_attn.{ours}.weight"].numpy().reshape(heads, 16, 64)
        file = tiny.weights[f"blk.0.{theirs}.weight"].reshape(heads, 16, 64)
        x = np.random.default_rng(1).standard_normal(64)
        angle = 3 * 10_000.0 ** (-np.arange(8) / 8)  # position 3
        a, b = (file @ x)[:, 0::2], (file @ x)[:, 1::2]
        in_pairs = np.stack([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)])
        c, d = (mine @ x)[:, :8], (mine @ x)[:, 8:]
        in_halves = np.stack([c * np.cos(angle) - d * np.sin(angle), c * np.sin(angle) + d * np.cos(angle)])
        assert np.array_equal(in_pairs, in_halves)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("slab", [40, 1 << 18])
def test_quantised_blocks_are_dequantised_as_the_gguf_library_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, slab: int
) -> None:
    monkeypatch.setattr(loader, "_SLAB_VALUES", slab)
    tiny = TinyGguf(layers=1, kind=Kind[kind])
    files = load_gguf(tiny.write(tmp_path / "tiny.gguf"))
    wanted = dequantize(quantize(tiny.weights["blk.0.ffn_down.weight"], tiny.kind), tiny.kind)
    assert np.array_equal(files.weights["model.layers.0.mlp.down_proj.weight"].numpy(), wanted)


def test_metadata_that_may_be_absent_have_their_documented_defaults(tmp_path: Path) -> None:
    absent = dict.fromkeys(
        ("general.name", "llama.rope.freq_base", "llama.attention.head_count_kv", "tokenizer.chat_template")
    )
    path = TinyGguf(kv_heads=4, metadata=absent).write(tmp_path / "unnamed.gguf")
    files = load_gguf(path)
    assert (files.name, files.chat_template) == ("unnamed", None)
    assert (files.spec.num_kv_heads, files.spec.rope_theta) == (4, 10_000.0)


def test_loading_needs_little_more_memory_than_the_weights(tmp_path: Path) -> None:
    path = TinyGguf(layers=1, inner=1 << 17, kind=Kind.Q8_0).write(tmp_path / "wide.gguf")
    tracemalloc.start()
    try:
        files = load_gguf(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = sum(4 * tensor.numel() for tensor in files.weights.values())
    assert size > 90e6
    assert peak < size + 10e6


# What is wrong with a file is said


def _fails(path: Path, match: str) -> None:
    with pytest.raises(ModelFileError, match=match) as caught:
        load_gguf(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert re.search(r"; .*(download|choose|use|convert|give|merge|check)|: check", message), "no remedy"


def _array(value: list[Any]) -> tuple[list[Any], GGUFValueType]:
    return value, GGUFValueType.ARRAY


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"architecture": "mamba"}, "architecture is 'mamba'; supported are llama"),
        ({"metadata": {"llama.block_count": None}}, "no llama.block_count"),
        ({"metadata": {"llama.block_count": (0, U32)}}, "llama.block_count is 0"),
        ({"metadata": {"llama.block_count": (3, U32)}}, "lacks 9 tensors, such as 'blk.2.attn_k.weight'"),
        ({"metadata": {"llama.block_count": (1, U32)}}, "tensor 'blk.1.* is not part of a plain llama"),
        ({"metadata": {"llama.block_count": (4_000_000_000, U32)}}, "llama.block_count is 4000000000"),
        ({"metadata": {"llama.block_count": ("two", TEXT)}}, "llama.block_count is 'two'"),
        ({"metadata": {"llama.attention.head_count_kv": (3, U32)}}, "do not go together"),
        ({"metadata": {"llama.attention.head_count_kv": _array([2, 2])}}, "from layer to layer"),
        ({"metadata": {"llama.attention.layer_norm_rms_epsilon": None}}, "no llama.attention.layer_norm"),
        ({"metadata": {"llama.attention.layer_norm_rms_epsilon": (float("nan"), F32)}}, "epsilon is nan"),
        ({"metadata": {"llama.rope.freq_base": (0.0, F32)}}, "freq_base is 0.0"),
        ({"metadata": {"llama.rope.dimension_count": (8, U32)}}, "dimension_count is 8"),
        ({"metadata": {"llama.rope.scaling.type": ("longrope", TEXT)}}, "llama.rope.scaling.type = 'longrope'"),
        ({"metadata": {"llama.expert_count": (8, U32)}}, "llama.expert_count = 8"),
        ({"metadata": {"split.count": (2, GGUFValueType.UINT16)}}, "split.count = 2.*merge its parts"),
        ({"metadata": {"llama.feed_forward_length": (128, U32)}}, r"shape \(96, 64\).*say \(128, 64\)"),
        ({"metadata": {"general.name": (7, U32)}}, "general.name is not a text"),
        ({"metadata": {"general.alignment": (24, U32)}}, "alignment is 24"),
        ({"metadata": {"tokenizer.ggml.model": ("bert", TEXT)}}, "tokenizer is of kind 'bert'"),
        ({"metadata": {"tokenizer.ggml.pre": ("tekken", TEXT)}}, "pre-tokenizer 'tekken' is not supported"),
        ({"metadata": {"tokenizer.ggml.tokens": _array(["a", "b"])}}, "2 tokens have"),
        ({"metadata": {"tokenizer.ggml.tokens": None}}, "tokenizer.ggml.tokens is missing"),
        ({"metadata": {"tokenizer.ggml.merges": _array(["h e", "he xx"])}}, "merge 1 .* does not fit"),
        ({"metadata": {"tokenizer.ggml.merges": _array(["he"])}}, "merge 0 .* does not fit"),
        ({"metadata": {"tokenizer.ggml.eos_token_id": (9999, U32)}}, "token id 9999 is outside"),
        ({"metadata": {"tokenizer.ggml.eos_token_id": ("x", TEXT)}}, "eos_token_id is 'x'"),
        ({"metadata": {"tokenizer.ggml.token_type": _array([1.5] * len(TOKENS))}}, "no list of whole numbers"),
    ],
)
def test_a_model_that_cannot_be_run_is_refused_with_its_reason(
    tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    _fails(TinyGguf(**changes).write(tmp_path / "odd.gguf"), match=match)


def test_a_vocabulary_of_another_size_than_the_embedding_is_refused(tmp_path: Path) -> None:
    tiny = TinyGguf()
    tiny.weights["token_embd.weight"] = tiny.weights["token_embd.weight"][:-1]
    _fails(tiny.write(tmp_path / "odd.gguf"), match="tokens, its embedding")


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    tiny = TinyGguf()
    tiny.weights["blk.1.ffn_up.weight"][3, 3] = np.nan
    _fails(tiny.write(tmp_path / "nan.gguf"), match=r"blk\.1\.ffn_up.* not finite")


def test_biases_in_some_places_only_are_refused(tmp_path: Path) -> None:
    for layer, match in ((0, "lacks 5 tensors, such as 'blk.0.attn_k.bias'"), (1, "attn_q.bias' is not part")):
        tiny = TinyGguf()
        tiny.weights[f"blk.{layer}.attn_q.bias"] = np.zeros(64, dtype=np.float32)
        _fails(tiny.write(tmp_path / "bias.gguf"), match=match)


@pytest.mark.parametrize(
    ("factors", "match"),
    [([1.0] * 7, "7 rotary factors do not go"), ([0.0] * 8, "no factors"), ([np.nan] * 8, "not finite")],
)
def test_rotary_factors_that_cannot_be(tmp_path: Path, factors: list[float], match: str) -> None:
    tiny = TinyGguf()
    tiny.weights["rope_freqs.weight"] = np.array(factors, dtype=np.float32)
    _fails(tiny.write(tmp_path / "odd.gguf"), match=match)


def test_a_path_that_is_no_model_file(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "page.gguf").write_text("<!doctype html><title>Not found</title>")
    _fails(tmp_path / "none.gguf", match="cannot be read .No such file")
    _fails(tmp_path, match="cannot be read")
    _fails(tmp_path / "empty.gguf", match="only 0 bytes")
    _fails(tmp_path / "page.gguf", match="does not start with 'GGUF' but with b'<!do'")


def _header(tensors: int = 0, keys: int = 0, body: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + body


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (_header(version=1), "GGUF version 1"),
        (_header(version=3 << 24), "big-endian"),
        (_header(tensors=1 << 62), "claims 4,611,686,018,427,387,904 tensors"),
        (_header(keys=1 << 40), "metadata keys, more than it can hold"),
        (_header(keys=1, body=struct.pack("<Q", 1 << 63) + bytes(20)), "a metadata key claims"),
        (_header(keys=1, body=struct.pack("<Q", 1 << 20) + bytes(20)), "ends inside a metadata key"),
        (_header(keys=1, body=_string(b"\xff\xfe") + bytes(20)), "a metadata key is not UTF-8"),
        (_header(keys=1, body=_string(b"k") + struct.pack("<I", 99) + bytes(9)), "'k' has unknown type 99"),
        (_header(keys=1, body=_string(b"k") + struct.pack("<IIQ", 9, 8, 1 << 60)), "elements of 'k', more than"),
        (_header(keys=1, body=_string(b"k") + struct.pack("<IIQ", 9, 12, 1 << 60)), "elements of 'k', more than"),
        (_header(keys=1, body=_string(b"k") + struct.pack("<IIQ", 9, 9, 1)), "an array of unknown type 9"),
        (
            _header(keys=2, body=2 * (_string(b"k") + struct.pack("<IQ", 10, 7)) + bytes(8)),
            "'k' occurs twice",
        ),
        (_header(tensors=1, body=_string(b"t") + struct.pack("<I", 1 << 31) + bytes(40)), "2147483648 dimensions"),
        (
            _header(tensors=2, body=2 * (_string(b"t") + struct.pack("<IQIQ", 1, 4, 0, 0)) + bytes(64)),
            "tensor 't' occurs twice",
        ),
        (
            _header(tensors=1, body=_string(b"t") + struct.pack("<IQIQ", 1, 4, 0, 1 << 63) + bytes(64)),
            "starts past the end",
        ),
    ],
)
def test_absurd_headers_are_refused_at_once(tmp_path: Path, content: bytes, match: str) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        _fails(path, match=match)
        assert tracemalloc.get_traced_memory()[1] < 2e6
    finally:
        tracemalloc.stop()


def _with_tensor(content: bytes, name: bytes, change: Callable[[bytearray, int], None]) -> bytes:
    """``content`` changed at the record of tensor ``name``, just behind its name."""
    changed = bytearray(content)
    change(changed, content.index(_string(name)) + 8 + len(name))
    return bytes(changed)


@pytest.mark.parametrize(
    ("type_id", "match"),
    [(999, "unknown type 999"), (26, "type I32, which cannot be read"), (14, "no whole number of Q6_K blocks")],
)
def test_tensor_types_that_cannot_be_read(tmp_path: Path, tiny_bytes: bytes, type_id: int, match: str) -> None:
    def change(content: bytearray, at: int) -> None:
        struct.pack_into("<I", content, at + 4 + 2 * 8, type_id)

    path = tmp_path / "odd.gguf"
    path.write_bytes(_with_tensor(tiny_bytes, b"blk.0.ffn_up.weight", change))
    _fails(path, match=match)


@pytest.mark.parametrize("size", [1 << 62, (1 << 64) - 1, 0])
def test_tensor_sizes_that_cannot_be(tmp_path: Path, tiny_bytes: bytes, size: int) -> None:
    def change(content: bytearray, at: int) -> None:
        struct.pack_into("<Q", content, at + 4 + 8, size)

    path = tmp_path / "odd.gguf"
    path.write_bytes(_with_tensor(tiny_bytes, b"token_embd.weight", change))
    _fails(path, match="shape|tokens, its embedding|ends inside")


@settings(max_examples=60, deadline=None, suppress_health_check=RELAXED)
@given(data=st.data())
def test_a_truncated_file_is_always_refused(tmp_path: Path, tiny_bytes: bytes, data: st.DataObject) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_bytes[: data.draw(st.integers(0, len(tiny_bytes) - 1))])
    _fails(path, match="it ends inside|it has only|starts past the end|more than it can hold")


@settings(max_examples=150, deadline=None, suppress_health_check=RELAXED)
@given(data=st.data())
def test_a_damaged_header_is_refused_or_harmless(tmp_path: Path, tiny_bytes: bytes, data: st.DataObject) -> None:
    header = tiny_bytes.index(_string(b"output_norm.weight")) + 60
    content = bytearray(tiny_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    try:
        files = load_gguf(path)
    except ModelFileError:
        return
    assert files.weights["model.norm.weight"].shape == (files.spec.hidden_size,)


@pytest.mark.model
def test_the_real_model(model_files: ModelFiles) -> None:
    files = model_files
    assert files.spec == ModelSpec(
        architecture="llama",
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position=8192,
        rms_norm_eps=pytest.approx(1e-5),
        rope_theta=100_000.0,
        tie_embeddings=True,
    )
    assert sum(tensor.numel() for tensor in files.weights.values()) == 134_515_008
    assert files.chat_template is not None


def test_weights_that_memory_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = TinyGguf().write(tmp_path / "tiny.gguf")
    monkeypatch.setattr(shared, "available_memory", lambda: 100_000)
    with pytest.raises(ModelFileError, match=r"weights take .* of memory and 100 KB are free"):
        load_gguf(path)
