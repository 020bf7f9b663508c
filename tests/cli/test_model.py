"""`orchestra model`."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from orchestra.cli.main import app


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ORCHESTRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")


def test_list_says_what_is_here(tmp_path):
    done = CliRunner().invoke(app, ["model", "list"])
    assert done.exit_code == 0
    assert "smollm2-135m" in done.stdout
    assert "Apache-2.0" in done.stdout
    assert done.stdout.count(" no") == 1
    assert str(tmp_path / "cache") in done.stdout.replace("\n", "")


@pytest.mark.model
def test_pull_from_a_file(tmp_path, monkeypatch, request):
    monkeypatch.delenv("ORCHESTRA_CACHE")
    source = request.getfixturevalue("model_path")
    monkeypatch.setenv("ORCHESTRA_CACHE", str(tmp_path / "cache"))
    done = CliRunner().invoke(app, ["model", "pull", "smollm2-135m", "--from", str(source)])
    assert done.exit_code == 0, done.output
    (pulled,) = (tmp_path / "cache" / "models").glob("*.gguf")
    assert pulled.stat().st_size == source.stat().st_size
    assert " yes" in CliRunner().invoke(app, ["model", "list"]).stdout


def test_pull_from_a_wrong_file(tmp_path):
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"GGUF" * 1000)
    done = CliRunner().invoke(app, ["model", "pull", "smollm2-135m", "--from", str(wrong)])
    assert done.exit_code != 0
    assert "wrong.gguf" in str(done.exception)
    assert list((tmp_path / "cache").rglob("*.gguf")) == []


@pytest.mark.model
def test_info_of_a_known_model(request, monkeypatch):
    monkeypatch.delenv("ORCHESTRA_CACHE")
    request.getfixturevalue("model_path")
    done = CliRunner().invoke(app, ["model", "info", "smollm2-135m"])
    assert done.exit_code == 0, done.output
    said = dict(line.split(maxsplit=1) for line in done.stdout.replace("KV cache", "KV-cache").splitlines())
    assert said["architecture"].strip() == "llama"
    assert said["parameters"].startswith("134.5 million")
    assert said["context"].startswith("8,192 tokens")
    assert said["KV-cache"].startswith("46,080 bytes a token")


def test_info_of_a_folder(tmp_path, monkeypatch):
    config = {
        "model_type": "mistral",
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32_000,
        "sliding_window": 4096,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = CliRunner().invoke(app, ["model", "info", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for part in (
        "mistral",
        "7,241.7 million",
        "32 of them with a window of 4,096 tokens",
        "262,144 bytes a token",
    ):
        assert part in done.stdout
    free = 40 * 10**9
    monkeypatch.setattr("orchestra.localengine.models.capacity.available_memory", lambda: free)
    said = " ".join(CliRunner().invoke(app, ["model", "info", str(tmp_path)]).stdout.split())
    assert "Weights take 28.97 GB and the KV cache 1.07 GB" in said
    assert "The KV of its 32 layers with a window is kept for the whole context, too." in said
    free = 10**9
    said = " ".join(CliRunner().invoke(app, ["model", "info", str(tmp_path)]).stdout.split())
    assert "It does not fit into the 1.00 GB that are free now." in said
    (tmp_path / "config.json").write_text("{}")
    assert "supported are llama" in str(CliRunner().invoke(app, ["model", "info", str(tmp_path)]).exception)


@pytest.mark.model
def test_info_in_int8_says_what_it_takes(request, monkeypatch):
    monkeypatch.delenv("ORCHESTRA_CACHE")
    request.getfixturevalue("model_path")
    done = CliRunner().invoke(app, ["model", "info", "smollm2-135m", "--precision", "int8"])
    assert done.exit_code == 0, done.output
    assert "334 MB of memory, in int8" in done.stdout
    assert "requests of 512 tokens at once" in done.stdout
    assert "perplexity" not in done.stdout  # nothing large was read


@pytest.mark.model
@pytest.mark.timeout(600)
def test_info_measures_int8_against_float32(request, monkeypatch):
    monkeypatch.delenv("ORCHESTRA_CACHE")
    # little of each, for time's sake
    for name, value in {"_OUTPUT_TOKENS": 5, "_STEPS": 1, "_CONTEXT": 32, "_ROWS": (1, 4)}.items():
        monkeypatch.setattr(f"orchestra.localengine.quality.measurement.{name}", value)
    request.getfixturevalue("model_read_once")
    done = CliRunner().invoke(app, ["model", "info", "smollm2-135m", "--precision", "int8", "--measure"])
    assert done.exit_code == 0, done.output
    assert "==> comparing its answers in int8" in done.stderr
    found = re.search(r"perplexity +([\d.]+) over (\d+) tokens of prose; in float32 ([\d.]+)", done.stdout)
    assert found, done.stdout
    perplexity, tokens, exact = float(found[1]), int(found[2]), float(found[3])
    assert tokens > 300
    assert exact < perplexity < 1.3 * exact  # torch's own dynamic int8: a million times as much
    divergence = re.search(r"divergence +([\d.]+) nats", done.stdout)
    assert divergence
    assert 0 < float(divergence[1]) < 0.2
    same = re.search(r"own choice .* (\d+) of (\d+) tokens", done.stdout)
    assert same
    assert 0.8 * int(same[2]) < int(same[1]) <= int(same[2])
    assert re.search(r"step, 1 request +\d+ ms", done.stdout)


def test_info_refuses_what_does_not_go_together(tmp_path):
    done = CliRunner().invoke(app, ["model", "info", "x", "--strict"])
    assert done.exit_code == 2
    assert "goes with --measure" in done.output.replace("\n", " ")
