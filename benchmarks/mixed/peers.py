"""The clients that are compared, and an environment of its own for each peer."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CLIENTS", "Client", "NotInstalled"]

_OPENAI = "openai==3.57.0"


class NotInstalled(Exception):
    """A peer cannot be measured here. The message says why."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client: its script, what it needs, and whether it can do without being told the limits.

    ``alone``: it carries the interactive calls and nothing else, which is as quick as they can be.
    """

    name: str
    script: str
    needs: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    learns: bool = False
    ours: bool = False
    alone: bool = False

    def command(self) -> list[str]:
        """Return the command that runs its script, its environment made. Raises NotInstalled."""
        script = Path(__file__).parent / "clients" / self.script
        return [str(self._environment()), str(script)]

    def _environment(self) -> Path:
        if self.ours:
            return Path(sys.executable)
        digest = hashlib.sha256(repr(self.needs).encode()).hexdigest()[:8]
        folder = _cache() / digest
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
        (folder / ".complete").touch()
        return python


CLIENTS = {
    client.name: client
    for client in (
        Client("orchestra", "orchestra_sdk.py", learns=True, ours=True),
        Client("floor", "openai_sdk.py", (_OPENAI,), learns=True, alone=True),
        Client("openai", "openai_sdk.py", (_OPENAI,), learns=True),
        Client("aiolimiter", "aiolimiter_buckets.py", ("aiolimiter==1.3.0", _OPENAI)),
        Client("litellm", "litellm_router.py", ("litellm==1.110.2",)),
        Client("token-throttle", "token_throttle_limiter.py", ("token-throttle==14.0.0", _OPENAI), python=(3, 12)),
        Client("async-batch-llm", "async_batch_llm_pool.py", ("async-batch-llm==0.28.0", _OPENAI)),
    )
}
"""Every client by its name: ours, the floor (the SDK with nothing but the interactive calls), the peers."""


def _cache() -> Path:
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
