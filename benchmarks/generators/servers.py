"""What is loaded: a server that answers as scripted, and a real one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from engines.contestants import VLLM, float32_folder
from peer_environment import NotInstalled

from orchestra.localengine.weights.registry import resolve

__all__ = ["SERVERS", "Server"]

_PATIENCE = 240.0  # seconds that a server may take to start
_FIRST, _GAP, _PIECES = 0.12, 0.015, 33
"""Seconds before a scripted answer and between its pieces, and how many there are."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs: its origin, the name of its model, and a folder with a tokenizer."""

    origin: str
    model: str
    tokenizer: Path


@contextmanager
def scripted() -> Iterator[Server]:
    """Run our scripted provider: every answer has the same pieces at the same times."""
    script = ["--service-time", str(_FIRST), "--gap", str(_GAP), "--chunks", str(_PIECES)]
    with _process([sys.executable, "-m", "orchestra.testing", *script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        yield Server(told["origin"], "scripted", tokenizer())


@contextmanager
def vllm() -> Iterator[Server]:
    """Run vLLM's server on the CPU, with the small model in float32. Raises NotInstalled."""
    folder = tokenizer()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = ["--dtype=float32", "--max-model-len=2048", "--max-num-seqs=16", "--enforce-eager"]
    command = [str(VLLM.interpreter()), "-m", "vllm.entrypoints.openai.api_server", f"--model={folder}", *settings]
    origin = f"http://127.0.0.1:{port}"
    with (
        TemporaryFile() as log,
        _process(
            [*command, "--served-model-name=small", "--host=127.0.0.1", f"--port={port}"],
            env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        deadline = time.monotonic() + _PATIENCE
        while not _answers(f"{origin}/health"):
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                last = log.read().decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
                raise NotInstalled(f"vLLM's server did not start: {last[0]}")
            time.sleep(0.5)
        yield Server(origin, "small", folder)


SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {"scripted": scripted, "vllm": vllm}
"""Every server by its name."""


def tokenizer() -> Path:
    """Return the folder of the small model, which holds its tokenizer too. Raises NotInstalled."""
    return float32_folder(resolve("smollm2-135m"))


@contextmanager
def _process(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process, and end it with those that it has started."""
    process = subprocess.Popen(command, start_new_session=True, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, sign)
                process.wait(20)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        if process.stdout is not None:
            process.stdout.close()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
