"""What ``orchestra run`` refuses, and what it takes all the same."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestra.testing import ScriptedProvider

Make = Callable[..., Any]


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({16: "{broken"}, ["in.jsonl, line 17", "not valid JSON", "each line must be one JSON object"]),
        ({16: 3}, ["in.jsonl, line 17", "custom_id 'id-3' is that of line 4 too", "unique"]),
        ({4: {"model": "fats"}}, ["in.jsonl, line 5", "'fats'", "fast"]),
        ({4: {"messages": []}}, ["in.jsonl, line 5", '"messages" must be a list of at least one message']),
        ({4: {"model": None}}, ["in.jsonl, line 5", "--model"]),
        ({4: {"stream": True}}, ["in.jsonl, line 5", '"stream" is not possible', "leave it out"]),
        ({2: b"\xff\xfe"}, ["in.jsonl, line 3", "UTF-8"]),
        ({2: "{", 9: 1, 12: "[]"}, ["3 lines cannot be used", "line 3:", "line 10:", "line 13:"]),
        (dict.fromkeys(range(15), "?"), ["15 lines cannot be used", "line 10:", "... and 5 more"]),
    ],
)
def test_bad_input_is_refused_whole(
    server: ScriptedProvider,
    orchestra: Make,
    batch_file: Make,
    change: dict[int, Any],
    told: list[str],
    dry: list[str],
) -> None:
    path = batch_file(*range(20))
    lines: list[Any] = path.read_bytes().splitlines()
    for place, new in change.items():
        if isinstance(new, dict):
            line = json.loads(lines[place])
            line["body"] |= new
            new = json.dumps(line)
        elif isinstance(new, int):
            new = lines[new]
        lines[place] = new.encode() if isinstance(new, str) else new
    path.write_bytes(b"\n".join(lines))
    code, out, err = orchestra("run", "in.jsonl", "--out", "out.jsonl", *dry)
    assert (code, out) == (2, "")
    for words in told:
        assert words in err
    assert (server.log, Path("out.jsonl").exists()) == ([], False)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.jsonl", "--out", "o"], "nowhere.jsonl: no such file; check the name"),
        ([".", "--out", "o"], "a folder"),
        (["empty.jsonl", "--out", "o"], "empty.jsonl: holds no lines; write one JSON object"),
        (["in.jsonl", "--out", "in.jsonl"], "would overwrite the input"),
        (["in.jsonl", "--out", "none/o"], "there is no folder"),
        (["in.jsonl", "--out", "."], "a folder"),
        (["in.jsonl"], "--out"),
        (["in.jsonl", "--out", "o", "--model", "fats"], "fast"),
        (["in.jsonl", "--out", "o", "--deadline", "soon"], "write it like 90s, 15m, 6h"),
        (["in.jsonl", "--out", "o", "--deadline", "24"], "24 has no unit, so it is no duration: write 24ms, 24s"),
        (["in.jsonl", "--out", "o", "--job", ""], "job name"),
        (["in.jsonl", "--out", "o", "--config", "none.toml"], "none.toml: no such file"),
        (["in.jsonl", "--out", "o", "--config", "typo.toml"], "did you mean 'models'"),
        (["in.jsonl", "--out", "o", "--config", "keyless.toml"], "ORCHESTRA_TEST_NO_SUCH_KEY is not set"),
        (["in.jsonl", "--out", "o", "--config", "badstore.toml"], "not a job store"),
        (["in.jsonl", "--out", "o", "--config", "badmodel.toml"], "cut.gguf"),
    ],
)
def test_bad_usage_is_refused(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, arguments: list[str], told: str
) -> None:
    batch_file(1)
    Path("empty.jsonl").write_text("\n \n")
    settings = Path("orchestra.toml").read_text()
    Path("typo.toml").write_text(settings.replace("[models.", "[model."))
    Path("keyless.toml").write_text(settings.replace("sk-hidden", "env:ORCHESTRA_TEST_NO_SUCH_KEY"))
    Path("badstore.toml").write_text(settings + '[bulk]\nstore = "empty.db"\n')
    Path("badmodel.toml").write_text('[models.fast]\nroutes = ["local/cut"]\n[local.cut]\nweights = "cut.gguf"\n')
    Path("cut.gguf").write_bytes(b"GGUF" + bytes(60))
    Path("empty.db").write_bytes(b"no database at all" * 100)
    code, out, err = orchestra("run", *arguments)
    assert code == 2
    assert told in err
    assert "Traceback" not in err
    assert (out, server.log, Path("o").exists()) == ("", [], False)
    code, out, _ = orchestra("jobs", "list")
    assert out == "no jobs yet in .orchestra/jobs.db\n"


def test_a_name_with_other_requests_is_bad_usage(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    batch_file(1, 2)
    assert orchestra("run", "in.jsonl", "--out", "o", "--job", "nightly")[0] == 0
    batch_file(1, 3)
    code, _, err = orchestra("run", "in.jsonl", "--out", "o", "--job", "nightly")
    assert code == 2
    assert "'nightly' exists already with other requests" in err
    assert "line 2" in err
    assert len(server.log) == 2


def test_results_overwrite_neither_settings_nor_store(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    batch_file(1)
    settings = Path("orchestra.toml").read_text()
    for out, told in (
        ("orchestra.toml", "the settings"),
        (".orchestra/jobs.db", "the store"),
        ("-", "name a file"),
    ):
        code, _, err = orchestra("run", "in.jsonl", "--out", out)
        assert (code, told in err) == (2, True), err
    assert not server.log
    assert Path("orchestra.toml").read_text() == settings


@pytest.mark.parametrize("arguments", [("x" * 300, "--out", "o"), ("in.jsonl", "--out", "x" * 300)])
def test_names_that_no_file_can_have(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, arguments: tuple[str, ...]
) -> None:
    batch_file(1)
    code, _, err = orchestra("run", *arguments)
    assert (code, "File name too long" in err) == (2, True), err


def test_no_room_for_a_copy_of_stdin(
    server: ScriptedProvider, orchestra: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x")))
    code, _, err = orchestra("run", "-", "--out", "o")
    assert (code, "TMPDIR" in err) == (2, True), err


@pytest.mark.parametrize("section", ["", '[local.small]\nweights = "none.gguf"\n'])
def test_a_bad_line_of_a_stream_fails_alone(
    server: ScriptedProvider, orchestra: Make, monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    """Whether an engine is configured, for which the input is looked through first, or not."""
    with Path("orchestra.toml").open("a") as settings:
        settings.write(section)
    stream = b'{"model": "fast", "prompt": "x"}\n{broken\n{"model": "fast", "prompt": "y"}\n'
    for arguments, expected in ((["--dry-run"], 0), ([], 1)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stream)))
        code, out, err = orchestra("run", "-", "--out", "o", *arguments)
        assert code == expected, err
        assert ("would fail: 1" in out) if arguments else ("2 of 3 lines answered, 1 failed" in out)
    assert len(server.log) == 2


def test_an_unknown_model_for_all_lines_is_told_once(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    batch_file(*range(20))
    for dry in ([], ["--dry-run"]):
        code, _, err = orchestra("run", "in.jsonl", "--out", "o", "--model", "fats", *dry)
        assert (code, err.count("fats")) == (2, 1), err
    assert not server.log


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_what_is_missing_is_told_before_an_engine_starts(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, dry: list[str]
) -> None:
    batch_file(1)
    Path("orchestra.toml").write_text(
        '[models.fast]\nroutes = ["local/none"]\n[local.none]\nweights = "none.gguf"\n'
    )
    code, _, err = orchestra("run", "in.jsonl", "--out", "o", *dry)
    assert (code, "none.gguf does not exist" in err, "starting" in err) == (2, True, False), err
    code, _, err = orchestra("run", "in.jsonl", "--out", "o", "--deadline", "6x", "--config", "nowhere.toml", *dry)
    assert (code, "--deadline" in err) == (2, True), err
    code, _, err = orchestra("run", "in.jsonl", "--out", "o", "--job", " x", *dry)
    assert (code, "job name" in err) == (2, True), err
