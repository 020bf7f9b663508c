"""`orchestra bench --compare`, whole, on a tiny model."""

from __future__ import annotations

import json
import re

import pytest
from tiny_gguf import TinyGguf
from typer.testing import CliRunner

from orchestra.bench.contest import Contest
from orchestra.cli.main import app
from orchestra.errors import InputError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCHESTRA_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    TinyGguf().write(tmp_path / "tiny.gguf")


def compare(*arguments, model="tiny.gguf"):
    return CliRunner().invoke(app, ["bench", "--compare", "--model", model, *arguments])


def test_four_ways_are_measured_and_reports_are_left(tmp_path, monkeypatch):
    for name, value in {"_SHORTEST": 0.2, "_LONGEST": 0.2, "_AGAIN": 1e9}.items():  # one small round
        monkeypatch.setattr(f"orchestra.bench.contest.{name}", value)
    (tmp_path / "orchestra.toml").write_text(
        '[local.small]\nweights = "tiny.gguf"\nmax_num_seqs = 4\n[models.fast]\nroutes = ["local/small"]\n'
    )
    short = ("--prompt", "8", "--output", "4", "--bulk-prompt", "8", "--bulk-output", "uniform:2:6")
    files = ("--json", "a.json", "--html", "a.html", "--png", "a.png")
    told = compare("--slo", "ttft=60s", "--rates", "20", *short, *files, model="fast")
    assert told.exit_code == 0, told.output
    assert "local/small: four ways to serve one load" in told.output
    assert "round 1: one queue" in told.stderr
    numbers = json.loads((tmp_path / "a.json").read_text())
    assert numbers["found"]["rounds"] == 1
    assert set(numbers["found"]["figures"]) == {"one queue", "static", "two pools", "classes"}
    assert all(figures["ttft_p50"]["value"] > 0 for figures in numbers["found"]["figures"].values())
    assert numbers["settings"]["each of two pools"].startswith("2 slots, 128 tokens a step")
    assert len(numbers["lessons"]) == 4
    page = (tmp_path / "a.html").read_text()
    assert "What two pools lose" in page
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert max(map(len, told.stdout.splitlines())) <= 80
    assert "…" not in told.output


def test_interrupted_it_says_what_there_is(tmp_path, monkeypatch):
    async def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Contest, "run", interrupted)
    told = compare("--json", "a.json")
    assert told.exit_code == 130
    assert "Interrupted" in told.output
    assert json.loads((tmp_path / "a.json").read_text())["found"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--url", "http://127.0.0.1:9/v1"), "leave --url out"),
        (("--sweep",), "leave --sweep out"),
        (("--seconds", "30"), "leave --seconds out"),
        (("--rates", "1,2"), "one number"),
        (("--minutes", "inf"), "--minutes must be"),
        (("--slo", "ttft"), "SLO"),
        (("--bulk-output", "x"), "bulk output lengths"),
        (("--json", "."), "is a folder"),
        (("--model", "far"), "far is answered by cloud/big"),
        (("--model", "cloud/big"), "cloud/big is answered by cloud/big"),
        (("--model", "none"), "as an engine's weights"),
    ],
)
def test_bad_usage_loads_nothing(tmp_path, monkeypatch, arguments, said):
    monkeypatch.setattr(Contest, "run", None)
    (tmp_path / "orchestra.toml").write_text(
        '[providers.cloud]\nkind = "openai-compatible"\nbase_url = "http://127.0.0.1:9/v1"\n'
        '[models.far]\nroutes = ["cloud/big"]\n'
    )
    told = compare(*arguments)
    assert isinstance(told.exception, InputError)
    assert said in str(told.exception)


def test_minutes_are_for_a_comparison():
    told = CliRunner().invoke(app, ["bench", "--model", "m", "--rates", "1", "--minutes", "3"])
    assert isinstance(told.exception, InputError)
    assert "--minutes is for --compare" in str(told.exception)


def test_the_help_teaches_the_comparison():
    said = re.sub(r"\s+", " ", CliRunner().invoke(app, ["bench", "--help"]).output)
    assert "orchestra bench --compare --model smollm2-135m" in said
