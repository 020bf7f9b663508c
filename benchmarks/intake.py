"""What a large file costs before and while it is answered: checking it whole, and bringing it into the ledger.

    python benchmarks/intake.py

Prints one JSON line for each measurement, then the targets and whether each holds. ``check`` is what
`orchestra run` does before anything is sent, the look-up of each line's model included. ``ledger`` is what goes on
while the first lines are answered already: beside an event loop that is idle, and one busy half of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from orchestra.client import Orchestra
from orchestra.config import Config
from orchestra.jobs.intake.inspection import inspect_file
from orchestra.jobs.intake.intake import Intake
from orchestra.jobs.intake.line_parser import LineParser
from orchestra.jobs.intake.sources import JsonlFile, file_chunks
from orchestra.jobs.ledger.store import JobStore

BUSY_SECONDS = 0.005
SETTINGS = {
    "providers": {"cloud": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key": "none"}},
    "models": {"fast": {"routes": ["cloud/fast"]}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000, help="of the file (default: 1,000,000)")
    options = parser.parse_args()
    lines = options.lines
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        write(source, lines)
        before = _peak_memory()
        check = asyncio.run(checking(source))
        _print("check", check)
        idle = asyncio.run(taking_in(source, Path(folder) / "idle.db", busy=False))
        _print("ledger", {**idle, "store_bytes_a_line": round((Path(folder) / "idle.db").stat().st_size / lines)})
        busy = asyncio.run(taking_in(source, Path(folder) / "busy.db", busy=True))
        _print("ledger beside a busy loop", busy)
        memory = (_peak_memory() - before) / 1e6
    verdicts = [
        ("lines checked a second", 80_000.0, check["lines_a_second"], True),
        ("lines brought into the ledger a second", 20_000.0, idle["lines_a_second"], True),
        ("memory over the beginning, MB", 200.0, memory, False),
    ]
    table = Table(title="targets", title_justify="left")
    for column in ("what", "target", "measured", "holds"):
        table.add_column(column)
    held = [measured >= target if least else measured <= target for _, target, measured, least in verdicts]
    for (what, target, measured, least), holds in zip(verdicts, held, strict=True):
        sign = ">=" if least else "<="
        table.add_row(what, f"{sign} {target:,.0f}", f"{measured:,.0f}", "yes" if holds else "NO")
    Console(stderr=True).print(table)
    sys.exit(0 if all(held) else 1)


def write(path: Path, lines: int) -> None:
    """Write OpenAI batch lines of about 220 bytes."""
    with path.open("w") as file:
        for number in range(lines):
            content = f"Classify ticket number {number}: my printer does not print"
            body = {"model": "fast", "messages": [{"role": "user", "content": content}], "max_tokens": 16}
            line = {"custom_id": f"r-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")


async def checking(source: Path) -> dict[str, float]:
    """Measure the check of the whole file."""
    async with Orchestra(Config.model_validate(SETTINGS)) as orc:
        with JsonlFile.open(source) as file:
            parser = LineParser(check=orc._check_line)
            started, cpu = time.perf_counter(), time.process_time()
            found = await inspect_file(file, parser)
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
            found.refuse(file.name)
    return {
        "lines": found.lines,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "lines_a_second": round(found.lines / seconds),
    }


async def taking_in(source: Path, store_path: Path, *, busy: bool) -> dict[str, float]:
    """Measure the way of the file's lines into a new ledger."""
    store = JobStore(store_path)
    job = store.create("intake", created=time.time(), model=None, deadline=None, source=None)
    other = asyncio.create_task(_keep_busy()) if busy else None
    with JsonlFile.open(source) as file:
        intake = Intake(store, job, file_chunks(file, LineParser()))
        started, cpu = time.perf_counter(), time.process_time()
        while await intake.step():
            pass
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    if other is not None:
        other.cancel()
    lines = store.tally(job.id).total
    store.close()
    return {
        "lines": lines,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "lines_a_second": round(lines / seconds),
    }


async def _keep_busy() -> None:
    while True:
        until = time.perf_counter() + BUSY_SECONDS
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(BUSY_SECONDS)


def _peak_memory() -> int:
    """Return the most memory that the process has had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _print(name: str, figures: dict[str, Any]) -> None:
    load = round(os.getloadavg()[0], 2)
    machine = {"cpus": os.cpu_count(), "load": load, "python": platform.python_version()}
    print(json.dumps({"benchmark": "intake", "what": name, **figures, "machine": machine}), flush=True)


if __name__ == "__main__":
    main()
