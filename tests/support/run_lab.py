"""``orchestra run`` and its output, in processes of their own."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestra.testing import ScriptedProvider

COMMAND = [sys.executable, "-c", "from orchestra.cli.main import main; main()"]


def read(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def prompts(server: ScriptedProvider) -> list[str]:
    return [hit.json["messages"][-1]["content"] for hit in server.log]


class Command:
    """``orchestra`` in a process of its own, to be handled as a `subprocess.Popen`."""

    _numbers = count()

    def __init__(self, arguments: Sequence[str]) -> None:
        self.returncode: int | None = None
        self._server, folder = _server()
        self._out, self._err = (folder / f"{next(self._numbers)}.{name}" for name in ("out", "err"))
        for path in (self._out, self._err):
            path.touch()  # it may be killed before it opens them
        files = {"folder": str(Path.cwd()), "out": str(self._out), "err": str(self._err)}
        self._pid: int = self._told({"run": list(arguments), **files, "environment": dict(os.environ)})["pid"]

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float = 50.0) -> int:
        code = self._ended(timeout)
        assert code is not None, f"it goes on: {self._err.read_text()[-3000:]}"
        return code

    def communicate(self, timeout: float = 50.0) -> tuple[str, str]:
        """Wait for its end. Returns what it wrote: to standard output, and to standard error."""
        self.wait(timeout)
        return self._out.read_text(), self._err.read_text()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self._pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float) -> int | None:
        if self.returncode is None:
            self.returncode = self._told({"wait": self._pid, "seconds": seconds})["code"]
        return self.returncode

    def _told(self, what: dict[str, Any]) -> dict[str, Any]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(what) + "\n")
        self._server.stdin.flush()
        told: dict[str, Any] = json.loads(self._server.stdout.readline())
        return told


@cache
def _server() -> tuple[subprocess.Popen[str], Path]:
    """What runs commands without loading them each time, and a folder for what they write. They end with us."""
    folder = TemporaryDirectory(prefix="orchestra-commands-")
    command = [sys.executable, str(Path(__file__).with_name("kill_server.py"))]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(folder.cleanup)
    atexit.register(server.communicate)
    return server, Path(folder.name)


def start(*arguments: object) -> Command:
    return Command([str(argument) for argument in arguments])


def wait_for(condition: Callable[[], bool], seconds: float = 50.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.005)


def settings_with_batches(server: ScriptedProvider, *, key: str = "sk-hidden", prices: bool = True) -> str:
    """Return settings by which ``fast`` is served by an account with batches, and ``plain`` by one without."""
    return (
        f'[providers.acme]\nkind = "openai"\nbase_url = "{server.base_url}"\napi_key = "{key}"\n'
        "[providers.acme.batch]\npoll_seconds = 0.05\npoll_max_seconds = 0.1\ncancelling_seconds = 5\n"
        "max_requests = 40\n"
        + ("[[providers.acme.prices]]\ninput = 100.0\noutput = 200.0\n" if prices else "")
        + f'[providers.fake]\nkind = "openai-compatible"\nbase_url = "{server.base_url}"\napi_key = "{key}"\n'
        '[models.fast]\nroutes = ["acme/m"]\n[models.plain]\nroutes = ["fake/p"]\n'
    )


class Hurry:
    """The clock of a provider, in seconds, which can be put forward ``by`` so many."""

    def __init__(self) -> None:
        self.by = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.by
