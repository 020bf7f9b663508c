"""An environment of its own for each SDK: that SDK, what this distribution needs, and nothing else."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Environment", "NotInstalled", "cache"]

ROOT = Path(__file__).resolve().parents[2]


class NotInstalled(Exception):
    """An environment cannot be made here. The message says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One virtual environment below the user's cache, made once for the same needs and the same Python.

    ``needs`` are requirements as pip takes them. ``ours``: this distribution is to run there, too. It is not
    installed but found on the path, so that what is tried is the working tree; what it needs is installed.
    ``without``: distributions that are taken out again.
    """

    needs: tuple[str, ...]
    ours: bool = True
    without: tuple[str, ...] = ()

    def python(self) -> Path:
        """Return its interpreter, the environment made. Raises NotInstalled."""
        needs = (*self.needs, *(_own_needs() if self.ours else ()))
        told = repr((needs, sys.version_info[:2], *self.without))
        name = self.needs[0].partition("[")[0].replace("==", "-")
        folder = cache() / f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"
        python = folder / "bin" / "python"
        if (folder / ".complete").exists():
            return python
        print(f"==> installing {', '.join(self.needs)} into {folder}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *needs])
        if self.without:
            _run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *self.without])
        (folder / ".complete").touch()
        return python

    def versions(self, *names: str) -> dict[str, str]:
        """Return the versions of those of these distributions that it has."""
        code = (
            "import sys; from importlib.metadata import distributions\n"
            "for one in distributions(): print(one.name.lower().replace('_', '-'), one.version)"
        )
        done = subprocess.run([str(self.python()), "-c", code], capture_output=True, text=True, check=True)
        all_of_them = dict(line.split() for line in done.stdout.splitlines())
        return {name: all_of_them[name] for name in names if name in all_of_them}

    def variables(self) -> Mapping[str, str]:
        """Return the environment variables to run it with: none of the caller's keys, proxies and settings."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TMPDIR") if name in os.environ}
        return {**kept, "PYTHONPATH": str(ROOT)} if self.ours else kept


def cache() -> Path:
    """Return where environments, and what is made for them, are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orchestra-sdks"


def _own_needs() -> tuple[str, ...]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return tuple(project["dependencies"])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        said = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "no word")
        raise NotInstalled(f"{' '.join(command[1:4])} failed: {said}")
