"""Real processes that share a budget file, against the limit by the book."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shared_lab import Leaky

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "tests" / "support" / "shared_worker.py"


@pytest.fixture
def start(tmp_path):
    """Start a worker on the one file, and return it once it is ready."""
    processes = []

    def begin(traffic, seconds, limits, *, tokens=10.0, hold=0.2):
        arguments = [tmp_path / "budget.db", traffic, seconds, json.dumps(limits), tokens, hold]
        process = subprocess.Popen(
            [sys.executable, str(WORKER), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def go(processes):
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()


def grants(process):
    """Return (instant, waited, tokens) of each grant, once the process has ended."""
    output, _ = process.communicate(timeout=120)
    return [tuple(map(float, line.split())) for line in output.splitlines() if line and line[0].isdigit()]


def exceeds(limits, rows):
    """Return by how much, at worst, the grants exceeded the limits."""
    worst = 0.0
    for metric, amount in (("requests", lambda row: 1.0), ("tokens", lambda row: row[2])):
        rate = limits[f"{metric}_per_minute"] / 60.0
        truth = Leaky(rate * limits["burst_seconds"], rate)
        truth.at = rows[0][0]
        worst = max(worst, *(truth.take(amount(row), row[0]) for row in rows))
    return worst


def share_of_limit(limits, rows):
    """Return how much of the requests was used, between the burst at first and the end."""
    since, until = rows[0][0] + 3.0, rows[0][0] + 8.5
    return sum(since < row[0] < until for row in rows) / (limits["requests_per_minute"] / 60.0 * (until - since))


@pytest.mark.timeout(300)
def test_four_processes_keep_one_limit_use_it_and_let_people_through(start):
    limits = {"requests_per_minute": 3000.0, "tokens_per_minute": 90_000.0, "burst_seconds": 2.0}
    seen = []
    for _ in range(4):
        bulk = [start("bulk", 9.0, limits) for _ in range(3)]
        person = start("interactive:5", 9.0, limits)
        go([*bulk, person])
        people = grants(person)
        rows = sorted(people + [row for process in bulk for row in grants(process)])
        assert exceeds(limits, rows) < 0.05
        used, wait = share_of_limit(limits, rows), statistics.quantiles([row[1] for row in people], n=100)[98]
        seen.append((used, wait, len(people)))
        # how fast four processes are is the machine's doing as well: one good run in a few is enough
        if 0.93 <= used <= 1.03 and wait < 0.25 and len(people) > 20:
            return
    raise AssertionError(f"used, wait and people, by run: {seen}")


@pytest.mark.timeout(180)
def test_the_share_of_a_process_that_is_killed_is_back_within_seconds(start):
    limits = {"requests_per_minute": 6000.0, "tokens_per_minute": 6e6, "burst_seconds": 1.0, "max_concurrency": 4}
    took = []
    for _ in range(3):
        killed = start("bulk", 60.0, limits, hold=100.0)
        go([killed])
        for _ in range(4):
            killed.stdout.readline()
        other = start("bulk", 60.0, limits, hold=0.1)
        go([other])
        time.sleep(1.0)
        when = time.monotonic()
        killed.kill()
        killed.communicate()
        at = float(other.stdout.readline().split()[0])
        other.kill()
        other.communicate()
        assert at > when, "all were in use before"
        took.append(at - when)
        if took[-1] < 4.0:  # or the machine was busy
            return
    raise AssertionError(f"the slots came back after {took} seconds")
