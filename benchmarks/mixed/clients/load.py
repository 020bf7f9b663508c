"""The load that every client carries, the same for all: a backlog of bulk calls and interactive calls in between.

Standard library alone, because each client runs in an environment of its own. A client is a script that says how
it asks and calls `carry`. The load comes as JSON in its first argument; one JSON line goes out at the end.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

MODEL = "scripted"
PATIENCE = 100_000
"""Retries of a client that retries by itself: giving up would only lose the call."""
BEAT = 0.01


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be carried, and what the client is told about the account.

    ``arrivals`` are the instants of interactive calls, in seconds from the start; ``seconds`` is how long it goes
    on, and ``grace`` what the last ones get beyond it. Limits are None where the client is not told.
    """

    base_url: str
    seconds: float
    grace: float
    bulk: int
    arrivals: list[float]
    max_tokens: int
    prompt_characters: tuple[int, int]
    requests_per_minute: float | None
    tokens_per_minute: float | None
    burst_seconds: float
    stream: bool = False
    loops: int = 1
    seed: int = 0
    shared: str | None = None

    def estimate(self, prompt: str) -> int:
        """Return what a client that counts characters takes a call to cost, in tokens."""
        return len(prompt) // 4 + 10 + self.max_tokens

    def prompts(self, count: int) -> list[str]:
        rand = random.Random(self.seed)
        return ["word " * (rand.randint(*self.prompt_characters) // 5) for _ in range(count)]


Ask = Callable[[str, bool], Awaitable[None]]
"""``await ask(prompt, interactive)`` makes one call and returns when it is answered."""
Connect = Callable[[Load], AbstractAsyncContextManager[Ask]]


@dataclass(slots=True)
class Record:
    """What happened. Instants are those of the monotonic clock, which all processes of a machine share."""

    started: float = math.inf
    handed_over: list[float] = field(default_factory=list)
    interactive: dict[int, tuple[float, float | None]] = field(default_factory=dict)
    bulk: list[float] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=lambda: {"interactive": 0, "bulk": 0})
    errors: Counter[str] = field(default_factory=Counter)
    longest_gap: float = 0.0
    cpu: float = 0.0


def carry(connect: Connect) -> None:
    """Carry the load with the client that ``connect`` opens, print what happened, and end the process."""
    load = Load(**json.loads(sys.argv[1]))
    record = Record()
    go = threading.Event()
    threads = [
        threading.Thread(
            target=lambda index=index: asyncio.run(_drive(connect, load, record, go, index)), daemon=True
        )
        for index in range(load.loops)
    ]
    for thread in threads:
        thread.start()
    while len(record.handed_over) < load.loops:
        if not all(thread.is_alive() for thread in threads):
            sys.exit("the client could not start")
        time.sleep(0.05)
    print(json.dumps({"ready": True}), flush=True)
    record.started = json.loads(sys.stdin.readline())["start"]
    record.cpu = time.process_time()
    record.longest_gap = 0.0
    go.set()
    while (left := record.started + load.seconds + load.grace - time.monotonic()) > 0:
        time.sleep(left)
    print(json.dumps(_told(load, record)), flush=True)
    os._exit(0)  # there may be thousands of calls under way, in a loop that is too busy to cancel them


async def _drive(connect: Connect, load: Load, record: Record, go: threading.Event, index: int) -> None:
    prompts = load.prompts(load.bulk + len(load.arrivals))
    async with connect(load) as ask:
        await ask("warm up " * 10, True)  # imports, connections, caches
        beat = asyncio.create_task(_beat(record))
        handing_over = time.monotonic()
        tasks = {
            asyncio.create_task(_bulk(ask, prompt, record)) for prompt in prompts[index : load.bulk : load.loops]
        }
        for _ in range(3):  # each goes once round the loop, behind all that is ready
            await asyncio.sleep(0)
        record.handed_over.append(time.monotonic() - handing_over)
        await asyncio.to_thread(go.wait)
        for number in range(index, len(load.arrivals), load.loops):
            due = record.started + load.arrivals[number]
            await asyncio.sleep(due - time.monotonic())
            prompt = prompts[load.bulk + number]
            tasks.add(asyncio.create_task(_interactive(ask, prompt, number, due, record)))
        await beat


async def _bulk(ask: Ask, prompt: str, record: Record) -> None:
    try:
        await ask(prompt, False)
        record.bulk.append(time.monotonic())
    except Exception as error:
        record.failed["bulk"] += 1
        record.errors[f"{type(error).__name__}: {error}"[:200]] += 1


async def _interactive(ask: Ask, prompt: str, number: int, due: float, record: Record) -> None:
    try:
        await ask(prompt, True)
        record.interactive[number] = (due, time.monotonic())
    except Exception as error:
        record.failed["interactive"] += 1
        record.errors[f"{type(error).__name__}: {error}"[:200]] += 1


async def _beat(record: Record) -> None:
    """Note how long the loop is away at a time."""
    last = time.monotonic()
    while True:
        await asyncio.sleep(BEAT)
        now = time.monotonic()
        record.longest_gap = max(record.longest_gap, now - last - BEAT)
        last = now


def _told(load: Load, record: Record) -> dict[str, Any]:
    end = record.started + load.seconds
    done = dict(record.interactive)
    return {
        "started": record.started,
        "interactive": [
            [record.started + at, done[number][1] if number in done else None]
            for number, at in enumerate(load.arrivals)
        ],
        "bulk_answered": sum(at <= end for at in list(record.bulk)),
        "failed": record.failed,
        "errors": dict(record.errors.most_common(3)),
        "cpu_s": round(time.process_time() - record.cpu, 2),
        "handing_over_s": round(max(record.handed_over), 3),
        "longest_gap_ms": round(record.longest_gap * 1000, 1),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


async def ask_sdk(client: Any, load: Load, prompt: str) -> Any:
    """Make one call with OpenAI's official SDK, and read its answer to the end."""
    request = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": load.max_tokens,
    }
    if not load.stream:
        return await client.chat.completions.create(**request)
    usage = None
    stream = await client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    async with stream:
        async for chunk in stream:
            usage = chunk.usage or usage
    return usage
