"""Runs the demo, as a program of a user's would: one `Orchestra`, a submitted job, and questions beside it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

from orchestra import InputError, Job, Orchestra
from orchestra.bench.load.arrivals import Arrivals
from orchestra.cli.demo.recording import Answer, BulkLoad, Recording, Step
from orchestra.cli.demo.workload import MODEL, QUESTIONS, TASKS, Ticket, bulk_requests, chat
from orchestra.jobs.output import output_line

__all__ = ["LOCAL_MODEL", "Plan", "Watcher", "measure"]

LOCAL_MODEL = "smollm2-135m"
ENGINE = "demo"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: how many questions alone and beside the bulk job, and the tickets of that job.

    ``rate``: questions a second, a Poisson process. ``backlog``: the fewest bulk lines that are kept in hand while
    questions are asked.
    """

    tickets: tuple[Ticket, ...]
    alone: int = 20
    loaded: int = 32
    rate: float = 0.4
    backlog: int = 16
    seed: int = 20


@dataclass(slots=True)
class Watcher:
    """Who is told how far the run is. Each is called from the event loop and returns at once."""

    phase: Callable[[str], None]
    asked: Callable[[int, int], None]
    bulk: Callable[[Job], None]


@dataclass(slots=True)
class _Feed:
    """The bulk job's lines: every ticket, then more of them for as long as questions are asked beside them."""

    plan: Plan
    given: int = 0
    ended: int = 0
    measured: bool = False
    stirred: asyncio.Event = field(default_factory=asyncio.Event)

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        first, rest = TASKS[0], _endless_tasks(self.plan.tickets)
        for request in bulk_requests(self.plan.tickets, first):
            self.given += 1
            yield request
        while True:
            while not self.measured and self.given - self.ended >= self.plan.backlog:
                self.stirred.clear()
                await self.stirred.wait()
            if self.measured:
                return
            self.given += 1
            yield next(rest)

    def stop(self) -> None:
        self.measured = True
        self.stirred.set()

    def note_ended(self) -> None:
        self.ended += 1
        self.stirred.set()


def _endless_tasks(tickets: tuple[Ticket, ...]) -> Iterator[dict[str, Any]]:
    """Yield the further tasks, and all of them again and again, each time under names of their own."""
    for task in TASKS[1:]:
        yield from bulk_requests(tickets, task)
    for lap in count(2):
        for task in TASKS:
            for request in bulk_requests(tickets, task):
                yield {**request, "custom_id": f"{request['custom_id']}-{lap}"}


async def measure(plan: Plan, store: Path, results: Path, watcher: Watcher) -> Recording:
    """Run the demo and return what was recorded. The bulk job's answers are written to ``results``.

    Raises InputError where the plan asks more questions than there are, LocalEngineError where the engine cannot
    start.
    """
    if plan.alone + plan.loaded > len(QUESTIONS):
        raise InputError(f"at most {len(QUESTIONS)} questions can be asked in one run")
    config = {
        "models": {MODEL: {"routes": [f"local/{ENGINE}"]}},
        "local": {ENGINE: {"weights": LOCAL_MODEL}},
        "bulk": {"store": str(store)},
    }
    questions = iter(QUESTIONS)
    async with Orchestra.from_config(config) as orc:
        watcher.phase("starting the engine")
        engine = await orc.engine(ENGINE)
        await _warm_up(orc)
        start = time.monotonic()

        watcher.phase(f"{plan.alone} questions with the engine to themselves, {plan.rate:g} a second")
        alone = await _trickle(orc, islice(questions, plan.alone), plan, start, watcher)

        watcher.phase(
            f"the same beside a bulk job: {len(plan.tickets)} support tickets, and more for as long as it "
            f"takes to answer {plan.loaded} questions"
        )
        feed = _Feed(plan)
        window_start = time.monotonic() - start
        job = await orc.submit(feed.lines(), model=MODEL, job=f"demo-{time.time():.0f}")
        collecting = asyncio.create_task(_collect(job, feed))
        watching = asyncio.create_task(_watch(job, watcher))
        try:
            loaded = await _trickle(orc, islice(questions, plan.loaded), plan, start, watcher)
            window = (window_start, time.monotonic() - start)
            feed.stop()
            watcher.phase("the rest of the bulk job")
            answered, output_tokens = await collecting
            bulk_end = time.monotonic() - start
        finally:
            collecting.cancel()
            watching.cancel()
        await _write_results(job, results)
        steps = [Step(step.at - start, step.seconds, step.interactive, step.bulk) for step in engine.steps()]
        threads = engine.stats()["threads"]
    return Recording(
        model=LOCAL_MODEL,
        threads=threads,
        seed=plan.seed,
        rate=plan.rate,
        alone=alone,
        loaded=loaded,
        bulk=BulkLoad(feed.given, answered, output_tokens, window_start, bulk_end),
        window=window,
        steps=[step for step in steps if step.at >= 0],
    )


async def _warm_up(orc: Orchestra) -> None:
    """Load the engine and run it once: first calls pay for what later ones do not."""
    await orc.chat(MODEL, **chat("Say hello."))


async def _trickle(
    orc: Orchestra, questions: Iterable[str], plan: Plan, start: float, watcher: Watcher
) -> list[Answer]:
    """Ask each question at its instant, answered or not yet: people do not wait for one another."""
    asking: list[asyncio.Task[Answer]] = []
    listed = list(questions)
    begin = time.monotonic()
    answered = 0

    def note(_: asyncio.Task[Answer]) -> None:
        nonlocal answered
        answered += 1
        watcher.asked(answered, len(listed))

    watcher.asked(0, len(listed))
    async with asyncio.TaskGroup() as group:
        instants = Arrivals().instants(plan.rate, random.Random(plan.seed))
        for question, at in zip(listed, instants, strict=False):
            intended = begin + at
            await asyncio.sleep(intended - time.monotonic())
            task = group.create_task(_ask(orc, question, intended, start))
            task.add_done_callback(note)
            asking.append(task)
    return [task.result() for task in asking]


async def _ask(orc: Orchestra, question: str, intended: float, start: float) -> Answer:
    first = last = 0.0
    async with orc.stream(MODEL, **chat(question)) as deltas:
        async for _ in deltas:
            last = time.monotonic()
            first = first or last
    return Answer(
        question=question,
        text=deltas.text,
        intended=intended - start,
        ttft=first - intended,
        total=last - intended,
        tokens=deltas.usage.completion_tokens if deltas.usage else 0,
    )


async def _collect(job: Job, feed: _Feed) -> tuple[int, int]:
    """Follow the job to its end. Returns how many lines were answered, and their output tokens."""
    answered = tokens = 0
    async for result in job:
        feed.note_ended()
        answered += result.ok
        tokens += result.output_tokens
    return answered, tokens


async def _watch(job: Job, watcher: Watcher) -> None:
    while True:
        watcher.bulk(job)
        await asyncio.sleep(0.5)


async def _write_results(job: Job, path: Path) -> None:
    with path.open("wb") as file:
        async for result in job.results():
            file.write(output_line(job.record, result))
