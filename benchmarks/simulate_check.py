"""Whether `orchestra simulate` tells beforehand how long calls wait, and how long a job takes.

    python benchmarks/simulate_check.py             # about 80 seconds
    python benchmarks/simulate_check.py --lines 600 --rate 6

A real run first: interactive calls, bulk calls and a durable job through one account of a scripted provider in a
process of its own, over real sockets and in real time, with a limit so tight that bulk queues and drains. Its log
of events is then the traffic of a simulation under the same settings. Both are counted alike, from their events. A
JSON line for each figure; exit code 1 where a wait or the job's time differs by more than 10 %. Waits of less than
50 ms are told, and held against nothing: what a loop needs for a turn is most of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orchestra
from orchestra.bench.load.arrivals import Arrivals
from orchestra.config import Config, parse_config
from orchestra.observe.event_log import EventLog
from orchestra.policies.traffic import TrafficClass
from orchestra.simulate.outside import Outside
from orchestra.simulate.recording import read_recording
from orchestra.simulate.simulation import Simulation
from orchestra.simulate.summing_up import class_findings
from orchestra.simulate.tally import Tally
from orchestra.testing import Limits

BURST = 5.0
MOST = 0.10
LEAST_WAIT = 0.05
MESSAGES = [{"role": "user", "content": "Say hello, and nothing else."}]


@contextmanager
def provider(options: argparse.Namespace) -> Iterator[str]:
    """Serve in a process of its own. Yields its address."""
    command = [sys.executable, "-m", "orchestra.testing", "--charge", "usage", "--burst-seconds", str(BURST)]
    command += ["--requests-per-minute", str(options.per_minute), "--service-time", str(options.service_time)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["base_url"]
        finally:
            process.terminate()


def settings(base_url: str, folder: Path, options: argparse.Namespace) -> Config:
    limits = {"requests_per_minute": options.per_minute, "burst_seconds": BURST}
    one = {"kind": "openai-compatible", "base_url": base_url, "api_key": "any", "limits": [limits]}
    return parse_config(
        {
            "providers": {"one": one},
            "models": {"fast": {"routes": ["one/m"]}},
            "bulk": {"store": str(folder / "jobs.db")},
            "observe": {"status": False},
        }
    )


async def run(config: Config, log: EventLog, options: argparse.Namespace) -> None:
    """Make all calls, and wait for the end of each."""
    async with orchestra.Orchestra(config) as orc, asyncio.TaskGroup() as group:
        orc.events.subscribe(log)
        draw = random.Random(options.seed)

        async def ask(at: float, bulk: bool) -> None:
            await asyncio.sleep(at)
            with orchestra.bulk() if bulk else orchestra.interactive():
                await orc.chat("fast", MESSAGES, max_tokens=8)

        async def drain() -> None:
            await asyncio.sleep(options.seconds / 10)
            lines = [{"messages": MESSAGES, "max_tokens": 8} for _ in range(options.lines)]
            await (await orc.submit(lines, model="fast", job="drain")).wait()

        group.create_task(drain())
        for at in Arrivals().instants(options.rate, draw):
            if at > options.seconds:
                break
            group.create_task(ask(at, draw.random() < options.bulk_share))


def figures(config: Config, path: Path, options: argparse.Namespace) -> Iterator[tuple[str, float, float]]:
    """Yield each figure's name, what was measured, and what the simulation says."""
    real = Tally()
    for event in EventLog.read(path):
        real(event)
    limits = Limits(requests_per_minute=options.per_minute, burst_seconds=BURST, charge="usage")
    found = Simulation(config, read_recording(path), Outside(allows={"one": limits}), seed=options.seed).run()
    for traffic in TrafficClass:
        measured, told = class_findings(real.classes[traffic]), found.classes[traffic.value]
        yield f"{traffic} calls", measured.calls, told.calls
        assert measured.waits is not None
        assert told.waits is not None
        yield f"{traffic} wait p50", measured.waits.p50, told.waits.p50
        yield f"{traffic} wait p95", measured.waits.p95, told.waits.p95
    (job,) = found.jobs
    yield "job drain", real.jobs["drain"].seconds or 0.0, job.seconds or 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="in which calls come")
    parser.add_argument("--rate", type=float, default=6.0, help="calls a second beside the job")
    parser.add_argument("--bulk-share", type=float, default=1 / 3)
    parser.add_argument("--lines", type=int, default=350, help="of the job")
    parser.add_argument("--per-minute", type=float, default=600.0, help="requests that the provider allows")
    parser.add_argument("--service-time", type=float, default=0.4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    holds = True
    with tempfile.TemporaryDirectory() as name, provider(options) as base_url:
        folder = Path(name)
        config, path = settings(base_url, folder, options), folder / "events.jsonl"
        log = EventLog(path)
        asyncio.run(run(config, log, options))
        log.close()
        for figure, real, simulated in figures(config, path, options):
            told: dict[str, Any] = {"figure": figure, "real": round(real, 4), "simulated": round(simulated, 4)}
            if real >= LEAST_WAIT:
                told["ratio"] = round(simulated / real, 4)
                told["holds"] = abs(simulated / real - 1) <= MOST
                holds = holds and told["holds"]
            print(json.dumps(told), flush=True)
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
