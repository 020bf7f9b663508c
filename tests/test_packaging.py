"""Wheel, sdist and editable install: each imports as a whole and runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = PROJECT["tool"]["setuptools"]["packages"]
VERSION = PROJECT["project"]["version"]

pytestmark = pytest.mark.timeout(900)


def run(*command: str | Path, cwd: Path) -> str:
    # none of the checkout may be importable by accident
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, target: Path, kind: str) -> Path:
    """Build with the setuptools of this environment, so that no network is needed."""
    run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", target, source, cwd=target)
    (made,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git would carry: builds leave things in the tree that they build."""
    target = tmp_path_factory.mktemp("checkout")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT)
    for name in listed.split("\0"):
        source = ROOT / name
        if not name or not (source.is_file() or source.is_symlink()):
            continue
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.symlink_to(os.readlink(source))
        else:
            copy.write_bytes(source.read_bytes())
            copy.chmod(source.stat().st_mode)
    return target


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(checkout, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, as an installer would that finds no wheel."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    return build(source, tmp_path_factory.mktemp("wheel"), "wheel")


def environment(folder: Path) -> Path:
    """Make a bare environment that sees this one's packages, but not this one's orchestra. Returns its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    (ours,) = {Path(path) for path in sys.path if path.endswith("site-packages")}
    (site,) = folder.glob("lib/python*/site-packages")
    # a plain path line adds packages, but does not run that folder's own .pth files (our editable install)
    (site / "borrowed.pth").write_text(f"{ours}\n")
    return folder / "bin" / "python"


def pip_install(python: Path, target: Path, *extra: str) -> None:
    run(
        sys.executable,
        *("-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-build-isolation", "--ignore-installed", *extra, target),
        cwd=python.parent,
    )


def check_install(python: Path, expected_root: Path) -> None:
    imports = "; ".join(f"import {package}" for package in PACKAGES)
    where = run(
        python,
        "-c",
        f"{imports}; import orchestra.kernels as k; print(orchestra.__file__, k.__file__)",
        cwd=python.parent,
    )
    for shown in where.split():
        assert Path(shown).resolve().is_relative_to(expected_root.resolve())
    assert run(python.parent / "orchestra", "--version", cwd=python.parent).strip() == f"orchestra {VERSION}"


def test_wheel_holds_everything_once(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"orchestra", f"orchestra_llm-{VERSION}.dist-info"}, "only `orchestra` may stand at the top"
    for package in PACKAGES:
        assert package.replace(".", "/") + "/__init__.py" in names
    assert "orchestra/py.typed" in names
    assert "orchestra/cli/demo/tickets.jsonl" in names
    assert "orchestra/observe/dashboard.json" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_wheel_installs_and_runs(wheel: Path, tmp_path: Path):
    python = environment(tmp_path / "env")
    pip_install(python, wheel)
    check_install(python, tmp_path / "env")


def test_editable_install_runs(checkout: Path, tmp_path: Path):
    python = environment(tmp_path / "env")
    pip_install(python, checkout, "--editable")
    check_install(python, checkout)
