"""What `make demo` and `make test` say where they cannot set themselves up, and that they do nothing twice."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    for name in ("pyproject.toml", "constraints.txt", "scripts/setup"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def fake(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def setup(clone: Path, *, python: Path | str = "", first: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.environ["PATH"] if first is None else f"{first}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHON": str(python)}
    return subprocess.run(["scripts/setup", "all"], cwd=clone, env=env, capture_output=True, text=True)


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode != 0
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("setup failed: ")]
    return sentence


def test_a_python_that_is_not_there(clone):
    assert "PYTHON=no-such-python does not run" in said(setup(clone, python="no-such-python"))
    assert not (clone / ".venv").exists()


def test_a_python_that_is_too_old(clone, tmp_path):
    old = fake(tmp_path / "bin", "old", 'case "$2" in *print*) echo 3.9 ;; *) exit 1 ;; esac')
    sentence = said(setup(clone, python=old))
    assert "Python 3.11 or newer is needed" in sentence
    assert "is Python 3.9" in sentence


def test_a_python_without_venv(clone, tmp_path):
    bare = fake(tmp_path / "bin", "bare", 'case "$2" in *print*) echo 3.12 ;; *venv*) exit 1 ;; esac')
    assert "apt install python3.12-venv" in said(setup(clone, python=bare))


def test_no_disk(clone, tmp_path):
    fake(tmp_path / "bin", "df", 'echo "Filesystem 1024-blocks Used Available"; echo "disk 1 2 500000"')
    sentence = said(setup(clone, first=tmp_path / "bin"))
    assert "only 488 MB are free" in sentence
    assert not (clone / ".venv").exists()


FAKE_PYTHON = """
case "$*" in
    *--version*) echo "Python 3.12.0" ;;
    *print*) echo 3.12 ;;
    *"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *"pip install"*) echo "$*" >> installs; exit "$(cat fails 2>/dev/null || echo 0)" ;;
esac
"""


def test_what_is_done_is_not_done_again(clone, tmp_path):
    python = fake(tmp_path / "bin", "fine", FAKE_PYTHON)
    first = setup(clone, python=python)
    assert first.returncode == 0, first.stderr
    assert "making .venv with Python 3.12.0" in first.stdout
    again = setup(clone, python=python)
    assert (again.returncode, again.stdout) == (0, "")
    assert len((clone / "installs").read_text().splitlines()) == 1
    with (clone / "constraints.txt").open("a") as file:
        file.write("another==1.0\n")
    assert "installing" in setup(clone, python=python).stdout
    assert len((clone / "installs").read_text().splitlines()) == 2


def test_a_failed_install_is_tried_again(clone, tmp_path):
    python = fake(tmp_path / "bin", "fine", FAKE_PYTHON)
    (clone / "fails").write_text("1")
    sentence = said(setup(clone, python=python))
    assert "check the network" in sentence
    (clone / "fails").unlink()
    assert setup(clone, python=python).returncode == 0


def test_what_is_installed_is_what_was_tested(clone, tmp_path):
    setup(clone, python=fake(tmp_path / "bin", "fine", FAKE_PYTHON))
    (install,) = (clone / "installs").read_text().splitlines()
    assert "--constraint constraints.txt --editable .[all]" in install


def test_another_python_than_the_environment_was_made_with(clone, tmp_path):
    first, second = (
        fake(tmp_path / "bin", name, FAKE_PYTHON.replace("echo 3.12 ;;", f'echo "3.12.0 in /{name}" ;;'))
        for name in ("first", "second")
    )
    assert setup(clone, python=first).returncode == 0
    sentence = said(setup(clone, python=second))
    assert ".venv was made with Python 3.12.0 in /first" in sentence
    assert f"PYTHON={second} is Python 3.12.0 in /second" in sentence
    assert "make clean" in sentence
    assert setup(clone, python=first).returncode == 0
    assert setup(clone).returncode == 0
    assert "does not run" in said(setup(clone, python="no-such-python"))
