"""A virtual environment of its own for each peer, made once, with pip, under ``~/.cache/orchestra-benchmarks``."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NotInstalled", "PeerEnvironment", "cache"]


class NotInstalled(Exception):
    """A peer cannot be measured here. The message says why."""


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """What a peer needs, as pip takes it, and the oldest Python that it runs on.

    ``without``: distributions that are taken out again.
    """

    needs: tuple[str, ...]
    python: tuple[int, int] = (3, 11)
    without: tuple[str, ...] = ()

    def interpreter(self) -> Path:
        """Return the Python to run the peer with, the environment made. Raises NotInstalled."""
        told = repr((*self.needs, *(f"not {name}" for name in self.without)))
        folder = cache() / hashlib.sha256(told.encode()).hexdigest()[:8]
        python = folder / "bin" / "python"
        if (folder / ".complete").exists():
            return python
        base = next((path for path in _pythons() if _version(path) >= self.python), None)
        if base is None:
            needed = ".".join(map(str, self.python))
            raise NotInstalled(f"needs Python {needed} or newer, and none was found")
        print(f"installing {', '.join(self.needs)} into {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        _run([str(base), "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.needs])
        if self.without:
            _run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *self.without])
        (folder / ".complete").touch()
        return python


def cache() -> Path:
    """Return the folder of what is made once for the benchmarks."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orchestra-benchmarks"


def _pythons() -> Iterator[Path]:
    """Yield the interpreters that there may be."""
    yield Path(sys.executable)
    for minor in (14, 13, 12):
        if found := shutil.which(f"python3.{minor}"):
            yield Path(found)
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    yield from sorted(versions.glob("3.*/bin/python"), reverse=True)


def _version(python: Path) -> tuple[int, ...]:
    """Return the version of an interpreter; nothing where it does not run."""
    code = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return tuple(int(part) for part in done.stdout.split()) if done.returncode == 0 else ()


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        said = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "no word")
        raise NotInstalled(f"{' '.join(command[1:4])} failed: {said}")
