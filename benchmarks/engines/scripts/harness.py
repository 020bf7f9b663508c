"""What every engine's script does alike. Standard library alone: each runs in an environment of its own.

A script is given the path of its job and the path of its answer, both JSON, and calls `serve` with a function that
serves requests. Loading and a short warm-up are outside the clock, and the memory's high-water mark is that of the
work alone.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WARM_UP = ((128, 8), (40, 8), (16, 8))  # tokens of prompt and output


@dataclass(frozen=True)
class Request:
    """Compute ``max_tokens`` tokens, exactly, after ``prompt``."""

    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Answer:
    """The output of a request, and when it was whole (``time.perf_counter``)."""

    token_ids: list[int]
    at: float


def read_job() -> dict[str, Any]:
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    return job


def answer(what: dict[str, Any]) -> None:
    Path(sys.argv[2]).write_text(json.dumps(what))


def measure(job: dict[str, Any], serve: Callable[[list[Request]], list[Answer]]) -> dict[str, Any]:
    """Serve the job's requests, all asked for at once, and return the figures and the outputs."""
    serve([Request(list(range(1000, 1000 + prompt)), output) for prompt, output in _WARM_UP])
    requests = [Request(one["prompt"], one["max_tokens"]) for one in job["requests"]]
    loaded = _peak()
    _forget_peak()
    cpu, began = time.process_time(), time.perf_counter()
    answers = serve(requests)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    for request, one in zip(requests, answers, strict=True):
        if len(one.token_ids) != request.max_tokens:
            raise SystemExit(f"{len(one.token_ids)} tokens came back instead of {request.max_tokens}")
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "latency_s": [one.at - began for one in answers],
        "peak_mb": _peak() / 1e6,
        "loading_peak_mb": loaded / 1e6,
        "outputs": [one.token_ids for one in answers],
    }


def _peak() -> int:
    """Bytes of memory that this process had at most."""
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _forget_peak() -> None:
    """Let the high-water mark begin anew, where the system can do that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass
