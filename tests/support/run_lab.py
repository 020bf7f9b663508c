"""``orchestra run`` and its output, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestra.testing import ScriptedProvider

COMMAND = [sys.executable, "-c", "from orchestra.cli.main import main; main()"]


def read(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def prompts(server: ScriptedProvider) -> list[str]:
    return [hit.json["messages"][-1]["content"] for hit in server.log]


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


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
