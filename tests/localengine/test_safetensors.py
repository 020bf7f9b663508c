"""Folders as hubs publish them: right numbers from a right one, one clear error from any other."""

from __future__ import annotations

import json
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_lab import VOCABULARY, make_folder, make_model, reference_logits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from orchestra.localengine.config import EngineConfig
from orchestra.localengine.errors import ModelFileError
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.service.loading import model_opener
from orchestra.localengine.step import RowInput
from orchestra.localengine.weights import files as shared
from orchestra.localengine.weights.hub import load_hub_folder, read_hub_spec
from orchestra.localengine.weights.opening import load_model, read_spec

INDEX = "model.safetensors.index.json"
RELAXED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]  # which measures the machine


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return make_model("llama", num_hidden_layers=2)


@pytest.fixture
def folder(model: PreTrainedModel, tmp_path: Path) -> Path:
    return make_folder(model, tmp_path / "tiny")


def edit(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; ... removes one."""
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def fails(folder: Path, match: str) -> None:
    with pytest.raises(ModelFileError, match=match) as caught:
        load_hub_folder(folder)
    message = str(caught.value)
    assert str(folder) in message
    assert re.search(r"download|choose|use |supported|convert|name the|check the|which is no|remove", message), (
        message
    )


def test_all_that_the_folder_says(model: PreTrainedModel, folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    edit(folder / "generation_config.json", eos_token_id=[4, 2])
    files = load_model(folder)
    assert files.spec == read_spec(folder) == read_hub_spec(folder)
    assert (files.name, files.spec.architecture, files.spec.vocab_size) == ("tiny", "llama", VOCABULARY)
    assert files.chat_template == "{{ messages[0].content }}"
    assert files.tokenizer.vocab_size == VOCABULARY
    assert (files.tokenizer.bos_id, files.tokenizer.eos_id) == (1, 2)
    assert files.tokenizer.eos_ids == {2, 4}
    state = model.state_dict()
    assert files.weights.keys() == state.keys()
    for name, tensor in files.weights.items():
        assert torch.equal(tensor, state[name]), name
        assert (tensor.dtype, tensor.is_contiguous()) == (torch.float32, True)


def test_the_engine_serves_it(model: PreTrainedModel, folder: Path) -> None:
    """Opened as the engine opens it, from its path: what it generates is what transformers does."""
    (folder / "chat_template.jinja").write_text("<|im_start|>{{ messages[0].content }}<|im_end|>")
    threads = torch.get_num_threads()
    loaded = model_opener(str(folder))(EngineConfig(kv_bytes=1 << 20, block_size=16, threads=threads))
    assert (loaded.name, loaded.context) == ("tiny", 512)
    assert loaded.encode_chat is not None
    ids = loaded.encode_chat([{"role": "user", "content": "the dog <|im_end|>"}])
    assert (ids[0], ids[-1], ids.count(4)) == (3, 4, 1)
    (result,) = loaded.runner.run([RowInput(0, 0, ids, 0, [0, 1, 2], SamplingParams(temperature=0), 0)])
    assert result.token_id == reference_logits(model, ids)[-1].argmax()
    loaded.runner.close()


def test_weights_do_not_change_when_the_file_does(folder: Path) -> None:
    files = load_model(folder)
    before = files.weights["model.norm.weight"].clone()
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(-4096, 2)
        file.write(bytes(4096))
    assert torch.equal(files.weights["model.norm.weight"], before)


def test_shards(model: PreTrainedModel, tmp_path: Path) -> None:
    folder = make_folder(model, tmp_path / "sharded", max_shard_size="40KB")
    assert (folder / INDEX).exists()
    assert not (folder / "model.safetensors").exists()
    files = load_model(folder)
    for name, tensor in model.state_dict().items():
        assert torch.equal(files.weights[name], tensor), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_kind_of_number(folder: Path, dtype: torch.dtype) -> None:
    path = folder / "model.safetensors"
    narrow = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file(narrow, path)
    files = load_model(folder)
    for name, tensor in narrow.items():
        assert torch.equal(files.weights[name], tensor.float()), name


def test_a_language_model_inside_a_larger_one(tmp_path: Path) -> None:
    """Gemma 3 from 4B up is published with a vision tower, which is left alone."""
    gemma = make_model("gemma3_text", num_hidden_layers=2)
    folder = make_folder(gemma, tmp_path / "gemma")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": config, "vision_config": {}, "eos_token_id": [2, 4]})
    )
    tensors = load_file(folder / "model.safetensors")
    for rename in ("language_model.{}".format, lambda n: n.replace("model.", "model.language_model.", 1)):
        inside = {rename(name): tensor for name, tensor in tensors.items()}
        save_file({**inside, "vision_tower.patch.weight": torch.zeros(3, 3)}, folder / "model.safetensors")
        files = load_model(folder)
        assert files.weights.keys() == tensors.keys()
        assert files.spec.architecture == "gemma3"


def test_what_files_hold_besides(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}, path)
    assert load_model(folder).weights.keys() == tensors.keys()
    edit(folder / "config.json", tie_word_embeddings=True)
    assert load_model(folder).weights.keys() == tensors.keys() - {"lm_head.weight"}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_type": "mixtral"}, "model_type is 'mixtral'; supported are llama"),
        ({"model_type": ...}, "model_type is 'None'"),
        ({"hidden_size": ...}, "no hidden_size"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000, not a whole number from 1"),
        ({"hidden_size": "48"}, "hidden_size is '48'"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": 64}, r"shape \[320, 48\] where config.json says \[320, 64\]"),
        ({"num_hidden_layers": 3}, "lacks the tensor 'model.layers.2"),
        ({"num_hidden_layers": 1}, "'model.layers.1.* is not part of a llama"),
        ({"num_key_value_heads": 3}, "do not go together"),
        ({"head_dim": 15}, "do not go together"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        ({"hidden_act": "relu"}, "activation is 'relu'"),
        ({"mlp_bias": True}, "mlp_bias is set"),
        ({"attention_bias": True}, "lacks the tensor 'model.layers.0.self_attn.q_proj.bias'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "scaled by 'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "scaled by 'longrope'"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor is 0"),
        ({"rope_parameters": {"rope_type": "linear", "factor": [1]}}, "factor differs|factor is"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "only part of each head"),
        ({"rope_parameters": 5}, "rope_parameters is 5"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "no low_freq_factor"),
        ({"vocab_size": 10}, "the id .* in a model of 10 rows|where config.json says"),
    ],
)
def test_a_config_that_cannot_be_run(folder: Path, changes: dict[str, Any], match: str) -> None:
    edit(folder / "config.json", **changes)
    fails(folder, match)


def test_an_absurd_config_takes_no_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(folder / "config.json", hidden_size=1 << 17, intermediate_size=1 << 20, num_hidden_layers=1000)
    tracemalloc.start()
    try:
        fails(folder, "of memory and .* are free; choose a smaller model")
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()


def test_weights_that_memory_has_no_room_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "available_memory", lambda: 10_000)
    fails(folder, "weights take .* of memory and 10 KB are free")


@pytest.mark.parametrize(
    "place",
    [
        "../outside.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "C:x.safetensors",
        "model.bin",
        "..",
        "",
        7,
        None,
    ],
)
def test_an_index_that_leads_out_of_the_folder(folder: Path, place: object) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": place}}))
    fails(folder, r"no \*\.safetensors file beside it")


@pytest.mark.parametrize(
    ("index", "match"),
    [
        ({}, "no weight_map"),
        ({"weight_map": []}, "no weight_map"),
        ({"weight_map": {"model.norm.weight": "gone.safetensors"}}, "no file gone.safetensors"),
        ({"weight_map": {"never.weight": "part.safetensors"}}, "1 tensors that are not in their files"),
        ({"weight_map": {f"t{i}": f"p{i}.safetensors" for i in range(2000)}}, "names 2,000 files"),
    ],
)
def test_an_index_that_is_wrong(folder: Path, index: dict[str, Any], match: str) -> None:
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / INDEX).write_text(json.dumps(index))
    fails(folder, match)


def test_pickles_are_never_opened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    fails(folder, "never opened: convert them to safetensors")


def test_a_folder_with_a_gguf_in_it(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    fails(folder, "neither model.safetensors nor model.safetensors.index.json; the file is damaged")
    (folder / "q4.gguf").touch()
    fails(folder, "name the .gguf file in it")


def header(content: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 8,
        struct.pack("<Q", 1 << 62) + b"{}",
        header({"t": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}),
        header({"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}, bytes(8)),
        header({"t": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, bytes(4)),
        header({"t": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        header(
            {
                "t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "u": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            },
            bytes(4),
        ),
    ],
)
def test_hostile_headers(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    fails(folder, "model.safetensors is no sound safetensors file|lacks the tensor")


@settings(max_examples=40, deadline=None, suppress_health_check=RELAXED)
@given(data=st.data())
def test_a_truncated_file_is_always_refused(folder: Path, data: st.DataObject) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        fails(folder, "no sound safetensors file")
    finally:
        path.write_bytes(whole)


def _replaced(change: Callable[[dict[str, torch.Tensor]], None], folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers(folder: Path, value: float) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = value

    _replaced(change, folder)
    fails(folder, r"layers\.1\.mlp\.up_proj.* not finite")


def test_weights_of_a_kind_that_is_not_read(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)

    _replaced(change, folder)
    fails(folder, "'model.norm.weight' is of type F8_E4M3")


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("config.json", b"{", "config.json is not JSON"),
        ("config.json", b'{"hidden_size": ' + b"9" * 5000 + b"}", "config.json is not JSON"),
        ("config.json", b"[]", "config.json is not a JSON object"),
        ("config.json", b"\xff\xfe", "config.json is not UTF-8"),
        ("config.json", b"[" * 200_000, "config.json is (nested|not JSON)"),
        ("config.json", b" " * (5 << 20), "config.json has 5 MB, more than any"),
        ("tokenizer.json", b"{}", "tokenizer.json has no model"),
        ("tokenizer.json", b'{"model": {"type": "WordPiece", "vocab": {}}}', "of kind 'WordPiece'"),
        ("tokenizer_config.json", b'{"bos_token": 5}', "bos_token in tokenizer_config.json is '5'"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "chat_template is no text"),
        ("generation_config.json", b'{"eos_token_id": "</s>"}', "eos_token_id is </s>"),
        ("generation_config.json", b'{"eos_token_id": 5000}', "token id 5000 is outside"),
    ],
)
def test_files_that_hold_something_else(folder: Path, name: str, content: bytes, match: str) -> None:
    (folder / name).write_bytes(content)
    fails(folder, match)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_files_that_are_missing(folder: Path, name: str) -> None:
    (folder / name).unlink()
    fails(folder, f"it has no {name}; use a complete model folder")
