"""What the budget's admission costs: time a call, alone and behind a long queue, and memory a waiter.

    python benchmarks/admission.py

Prints one JSON line for each measurement, then the targets and whether each holds. Times are medians of rounds
that take the sizes in turn, so that a slow moment of the machine falls on all of them alike.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from orchestra.budget import Pool
from orchestra.budget.admission import NOTHING, Admission
from orchestra.budget.bucket import Bucket
from orchestra.budget.ticket import Ticket
from orchestra.call import Charge
from orchestra.config import LimitsConfig
from orchestra.policies.traffic import TrafficClass

SIZES = (100, 1_000, 10_000, 100_000)
CHARGE = Charge(tokens=150.0, input_tokens=100.0, output_tokens=50.0)
AMPLE = LimitsConfig(requests_per_minute=1e9, tokens_per_minute=1e12)
SCARCE = LimitsConfig(requests_per_minute=600.0, tokens_per_minute=1e9, burst_seconds=1.0)
INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="of each measurement (default: 15)")
    parser.add_argument("--waiters", type=int, default=100_000, help="of the live pool (default: 100,000)")
    options = parser.parse_args()
    alone = uncontended(options.rounds)
    _print("uncontended", alone)
    growth = against_waiters(options.rounds)
    for size, cost in growth.items():
        _print("behind waiters", {"waiters": size, **cost})
    memory = memory_a_waiter(SIZES[-1])
    _print("memory", memory)
    _print("live pool", asyncio.run(live_pool(options.waiters)))
    first, last = growth[SIZES[0]], growth[SIZES[-1]]
    verdicts = [
        ("acquire + settle, uncontended", 25.0, alone["acquire_settle_us"], "us"),
        *(
            (f"{name}, {SIZES[-1]:,} waiters over {SIZES[0]}", 2.0, last[f"{name}_us"] / first[f"{name}_us"], "x")
            for name in ("interactive", "bulk", "cancel")
        ),
        ("memory of our own objects a waiter", 2048.0, memory["bytes_a_waiter"], "bytes"),
    ]
    table = Table(title="targets", title_justify="left")
    for column in ("what", "at most", "measured", "holds"):
        table.add_column(column)
    for what, most, measured, unit in verdicts:
        table.add_row(what, f"{most:g} {unit}", f"{measured:.1f} {unit}", "yes" if measured <= most else "NO")
    Console(stderr=True).print(table)
    sys.exit(0 if all(measured <= most for _, most, measured, _ in verdicts) else 1)


def uncontended(rounds: int, calls: int = 2_000) -> dict[str, float]:
    """Measure a call that nothing holds back: acquired, settled, asynchronously and from a thread."""

    async def once() -> float:
        pool = Pool(AMPLE)
        started = time.perf_counter()
        for _ in range(calls):
            lease = await pool.acquire(CHARGE, traffic=BULK)
            lease.settle(CHARGE)
        return (time.perf_counter() - started) / calls

    async def nothing() -> float:
        started = time.perf_counter()
        for _ in range(calls):
            await asyncio.sleep(0)
        return (time.perf_counter() - started) / calls

    def synchronously() -> float:
        pool = Pool(AMPLE)
        started = time.perf_counter()
        for _ in range(calls):
            pool.acquire_sync(CHARGE, traffic=BULK).settle(CHARGE)
        return (time.perf_counter() - started) / calls

    async def interleaved() -> list[tuple[float, float, float]]:
        return [(await once(), await nothing(), synchronously()) for _ in range(rounds)]

    mine, loop, sync = zip(*asyncio.run(interleaved()), strict=True)
    return {
        "acquire_settle_us": _us(statistics.median(mine)),
        "of_which_once_round_the_loop_us": _us(statistics.median(loop)),
        "acquire_settle_sync_us": _us(statistics.median(sync)),
    }


def against_waiters(rounds: int, calls: int = 300) -> dict[int, dict[str, float]]:
    """Measure what one more call costs behind so many bulk calls that wait.

    ``interactive``: one comes, goes at once, and ends. ``bulk``: one comes and waits, and the first of the queue
    goes. ``cancel``: one comes and gives up.
    """
    gates = {size: _queue(size) for size in SIZES}
    costs: dict[int, dict[str, list[float]]] = {size: {} for size in SIZES}
    for _ in range(rounds):
        for size, gate in gates.items():
            for name, step in (("interactive", _interactive), ("bulk", _bulk), ("cancel", _cancel)):
                gc.collect()
                started = time.perf_counter()
                for _ in range(calls):
                    step(gate)
                costs[size].setdefault(name, []).append((time.perf_counter() - started) / calls)
    return {
        size: {f"{name}_us": _us(statistics.median(times)) for name, times in by_name.items()}
        for size, by_name in costs.items()
    }


class _Gate:
    """An admission in virtual time, whose limit is used up to the interactive reserve."""

    def __init__(self) -> None:
        self.now = 0.0
        buckets = [Bucket("requests", capacity=6e6, rate=1e5), Bucket("tokens", capacity=1e12, rate=1e9)]
        self.admission = Admission(buckets, reserve=0.2)
        filler = Ticket(Charge(requests=4.8e6), BULK)
        self.admission.enqueue(filler, self.now)
        self.admission.decide(self.now)

    def ask(self, traffic: TrafficClass, job: str | None = None) -> Ticket:
        ticket = Ticket(CHARGE, traffic, job=job)
        self.admission.enqueue(ticket, self.now)
        return ticket


def _queue(size: int) -> _Gate:
    gate = _Gate()
    for number in range(size):
        gate.ask(BULK, f"job-{number % 4}")
    gate.admission.decide(gate.now)
    if gate.admission.bulk.waiting != size:
        raise RuntimeError(f"{gate.admission.bulk.waiting} calls wait, not {size}")
    return gate


def _interactive(gate: _Gate) -> None:
    ticket = gate.ask(INTERACTIVE)
    _expect(gate.admission.decide(gate.now).granted, ticket)
    gate.admission.end(ticket, NOTHING, gate.now)
    gate.admission.decide(gate.now)


def _bulk(gate: _Gate) -> None:
    gate.ask(BULK, "job-0")
    gate.admission.decide(gate.now)
    gate.now += 1e-5  # the refill of one request
    granted = gate.admission.decide(gate.now).granted
    if len(granted) != 1:
        raise RuntimeError(f"{len(granted)} calls went, not one")
    gate.admission.end(granted[0], CHARGE, gate.now)
    gate.admission.decide(gate.now)


def _cancel(gate: _Gate) -> None:
    ticket = gate.ask(BULK, "job-0")
    gate.admission.decide(gate.now)
    gate.admission.withdraw(ticket, gate.now)
    gate.admission.decide(gate.now)


def _expect(granted: list[Ticket], ticket: Ticket) -> None:
    if granted != [ticket]:
        raise RuntimeError("the interactive call did not go at once")


def memory_a_waiter(waiters: int) -> dict[str, float]:
    """Measure what a waiting call takes: our own objects, and with the task, the future and the frames around."""

    def measure(fill: Callable[[], Any]) -> float:
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        held = fill()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        del held
        return (after - before) / waiters

    async def parked() -> float:
        pool = Pool(SCARCE)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        tasks = [asyncio.create_task(_hold(pool)) for _ in range(waiters)]
        await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        await _cancel_all(tasks)
        return (after - before) / waiters

    return {
        "waiters": waiters,
        "bytes_a_waiter": round(measure(lambda: _queue(waiters))),
        "bytes_a_waiter_with_its_task": round(asyncio.run(parked())),
    }


async def live_pool(waiters: int, arrivals: int = 200) -> dict[str, float]:
    """Measure interactive calls that come to a live pool where bulk calls wait, and the loop's longest absence."""
    pool = Pool(SCARCE)
    started = time.perf_counter()
    tasks = [asyncio.create_task(_hold(pool)) for _ in range(waiters)]
    for _ in range(3):  # each goes once round the loop, behind all that is ready
        await asyncio.sleep(0)
    if (waiting := pool.snapshot()["waiting"]["bulk"]) < 0.9 * waiters:
        raise RuntimeError(f"only {waiting} calls wait")
    entering = time.perf_counter() - started
    waits, gap, last = [], 0.0, time.perf_counter()
    for _ in range(arrivals):
        await asyncio.sleep(0.005)
        asked = time.perf_counter()
        gap = max(gap, asked - last - 0.005)
        lease = await pool.acquire(CHARGE, traffic=INTERACTIVE)
        last = time.perf_counter()
        waits.append(last - asked)
        lease.refund()
    waits.sort()
    started = time.perf_counter()
    await _cancel_all(tasks)
    leaving = time.perf_counter() - started
    left = pool.snapshot()["waiting"]["bulk"]
    if left:
        raise RuntimeError(f"{left} cancelled calls still wait")
    return {
        "waiters": waiters,
        "entering_us_a_waiter": _us(entering / waiters),
        "leaving_us_a_waiter": _us(leaving / waiters),
        "interactive_p50_us": _us(waits[len(waits) // 2]),
        "interactive_p99_us": _us(waits[int(len(waits) * 0.99)]),
        "longest_gap_ms": round(gap * 1000, 2),
    }


async def _hold(pool: Pool) -> None:
    with await pool.acquire(CHARGE, traffic=BULK):
        pass


async def _cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 2)


def _print(name: str, figures: dict[str, Any]) -> None:
    load = round(os.getloadavg()[0], 2)
    machine = {"cpus": os.cpu_count(), "load": load, "python": platform.python_version()}
    print(json.dumps({"benchmark": "admission", "what": name, **figures, "machine": machine}), flush=True)


if __name__ == "__main__":
    main()
