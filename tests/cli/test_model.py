"""`orchestra model`."""

from __future__ import annotations

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
