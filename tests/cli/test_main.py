"""How the command line starts, and how it ends."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from orchestra import errors
from orchestra.cli import main as cli
from orchestra.localengine.errors import EngineBusy, ModelFileError


def orchestra(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from orchestra.cli.main import main; main()", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


def test_help_teaches_and_is_quick():
    took = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = orchestra("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0
        if took[-1] < 0.7:
            break
    for taught in ("orchestra demo", "orchestra init", "orchestra doctor", "orchestra run"):
        assert taught in done.stdout
    # processor seconds, and the best of five: the machine may be busy with something else
    assert min(took) < 0.7


def test_version():
    done = orchestra("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("orchestra 0.")


def test_no_arguments_shows_the_help():
    done = orchestra()
    assert "Usage: orchestra" in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("nonsense",), ("doctor", "--nonsense"), ("model", "pull")])
def test_bad_usage_exits_2(arguments):
    done = orchestra(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_an_error_is_one_line():
    done = orchestra("model", "pull", "smollm2-136m")
    assert done.returncode == 2
    assert done.stderr.startswith("orchestra: ")
    assert done.stderr.count("\n") == 1
    assert "smollm2-135m" in done.stderr


def test_debug_shows_the_traceback():
    done = orchestra("model", "pull", "smollm2-136m", ORCHESTRA_DEBUG="1")
    assert done.returncode != 0
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("wrong"), 2),
        (errors.InputError("wrong"), 2),
        (errors.UnknownModelError("wrong"), 2),
        (errors.LocalEngineError("wrong"), 1),
        (errors.JobError("wrong"), 1),
        (ModelFileError("wrong"), 2),
        (EngineBusy("wrong"), 1),
    ],
)
def test_exit_code_by_error(monkeypatch, capsys, error, code):
    def fail(prog_name: str) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    assert capsys.readouterr().err == "orchestra: wrong\n"


def test_interrupted_exits_130(monkeypatch, capsys):
    def interrupt(prog_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupt)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    def fail(prog_name: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main()
