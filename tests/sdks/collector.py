"""A collector that nobody here wrote, told of calls by OpenTelemetry's own exporter: Rotel, over OTLP and HTTP.

It writes what it receives to its log. The names there are held against OpenTelemetry's own list of them.
"""

from __future__ import annotations

import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from environments import Environment, NotInstalled

__all__ = ["NAME", "try_collector"]

NAME = "rotel 0.0.1a15"
PATIENCE = 30.0
"""Seconds that it may take to start, and the program to end."""
ENVIRONMENT = Environment(("rotel==0.0.1a15", "opentelemetry-exporter-otlp-proto-http==1.45.2"))
SPANS = ["queue", "request main/m1", "queue", "request main/m1", "chat m1", "queue", "request main/m1", "chat m1"]
"""Of a call that is refused and retried, and of one more: what an attempt does ends before its call."""
METRICS = {
    "gen_ai.client.operation.duration",
    "gen_ai.client.operation.time_to_first_chunk",
    "gen_ai.client.token.usage",
    "orchestra.queue.duration",
    "orchestra.retries",
}
"""Some that must come."""


def try_collector() -> list[str]:
    """Return what was wrong with it; nothing where it was skipped. What is seen is printed."""
    print(f"\n{NAME}", flush=True)
    try:
        received = _received()
    except NotInstalled as error:
        print(f"  skipped: {error}", flush=True)
        return []
    wrong = faults(received, _conventions())
    print(f"  {'spans and metrics':<12} {'FAILED' if wrong else 'ok'}", flush=True)
    return [f"{NAME}, {line}" for line in wrong]


def faults(received: str, conventions: set[str]) -> list[str]:
    """Return what is wrong with a collector's log, where it has every span and metric in full."""
    spans = re.findall(r"^ +Name +: (.+)$", received, flags=re.M)
    metrics = set(re.findall(r"^ +-> Name: (.+)$", received, flags=re.M))
    named = metrics | set(re.findall(r"^ +-> ([\w.]+): \w+\(", received, flags=re.M))
    wrong = []
    if spans != SPANS:
        wrong.append(f"its spans are {spans}")
    if missing := METRICS - metrics:
        wrong.append(f"it has no {', '.join(sorted(missing))}")
    if unknown := {name for name in named if name.startswith("gen_ai.")} - conventions:
        wrong.append(f"the conventions know no {', '.join(sorted(unknown))}")
    if "secret" in received:
        wrong.append("it was told a secret")
    return wrong


def _conventions() -> set[str]:
    """Return every name that OpenTelemetry's conventions for generative AI have."""
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
    from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

    values = [*vars(gen_ai_attributes).values(), *vars(gen_ai_metrics).values()]
    return {value for value in values if isinstance(value, str) and value.startswith("gen_ai.")}


def _received() -> str:
    """Return the log of a collector that the program has told of its calls. Raises NotInstalled."""
    python = ENVIRONMENT.python()
    program = Path(__file__).parent / "collected.py"
    with tempfile.TemporaryFile() as log, _collector(python, log.fileno()) as address:
        done = subprocess.run(
            [str(python), str(program), address],
            env=ENVIRONMENT.variables(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode != 0:
            return done.stderr
        text, seen = "", -1
        while len(text) > seen:  # it gathers what comes before it passes it on
            seen = len(text)
            time.sleep(1)
            log.seek(0)
            text = log.read().decode()
        return text


@contextmanager
def _collector(python: Path, log: int) -> Iterator[str]:
    """Run it, its log to a file, and yield its address. Raises NotInstalled."""
    (binary,) = python.parents[1].glob("lib/python3*/site-packages/rotel/rotel-agent")
    ports = _free_ports()
    told = ["--debug-log", "traces", "--debug-log", "metrics", "--debug-log-verbosity", "detailed"]
    addresses = [f"--otlp-{kind}-endpoint=127.0.0.1:{port}" for kind, port in ports.items()]
    command = [str(binary), "start", "--exporter", "blackhole", *told, *addresses]
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + PATIENCE
        while not _listens(ports["http"]):
            if process.poll() is not None or time.monotonic() > deadline:
                raise NotInstalled("it did not start")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{ports['http']}"
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _free_ports() -> dict[str, int]:
    with socket.socket() as http, socket.socket() as grpc:
        for probe in (http, grpc):
            probe.bind(("127.0.0.1", 0))
        return {"http": http.getsockname()[1], "grpc": grpc.getsockname()[1]}


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
