"""One client's run: a provider of its own, the client in fresh processes, and what both saw."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mixed.peers import Client
from mixed.scenario import Scenario
from mixed.score import score

__all__ = ["ClientFailed", "run"]


class ClientFailed(Exception):
    """A client did not come to its end."""


class _Process:
    """A child that is told lines and tells lines, as JSON."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *exc: object) -> None:
        self._child.kill()
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._child.wait()

    def tell(self, what: Mapping[str, Any]) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(what) + "\n")
        self._child.stdin.flush()

    def hear(self) -> Any:
        """Return the next thing it tells. Raises ClientFailed where it ended instead."""
        assert self._child.stdout is not None
        while line := self._child.stdout.readline():
            if line.startswith("{"):  # whatever else a library prints is none of ours
                return json.loads(line)
        said = self._child.stderr.read().strip().splitlines() if self._child.stderr else []
        raise ClientFailed(said[-1] if said else "it ended without a word")

    def finish(self) -> Any:
        """End its input, and return the last thing that it tells."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        return self.hear()


def run(client: Client, scenario: Scenario) -> dict[str, Any]:
    """Carry the load once, and return the figures. Raises NotInstalled, and ClientFailed where it breaks down."""
    command = client.command()
    with ExitStack() as stack:
        server = Path(__file__).parent / "provider.py"
        provider = stack.enter_context(_Process([sys.executable, str(server), scenario.name]))
        address = provider.hear()
        shared = None
        if scenario.processes > 1:
            shared = f"sqlite:{stack.enter_context(TemporaryDirectory())}/budget.db"
        clients = []
        for process in range(scenario.processes):
            load = scenario.load(address["base_url"], process, shared)
            if client.alone:
                load["bulk"] = 0
            clients.append(stack.enter_context(_Process([*command, json.dumps(load)])))
        for one in clients:
            one.hear()
        start = time.monotonic() + 1.0
        for one in (provider, *clients):
            one.tell({"start": start})
        told = [one.hear() for one in clients]
        seen = provider.finish()
        return score(scenario, start, {**address, **seen}, told)
