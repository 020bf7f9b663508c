"""Lines that go by themselves while batches bring others back: none is sent twice, and none after its answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from virtual_time import virtual

from orchestra.call import Call, Outcome
from orchestra.jobs.intake.line_parser import LineParser
from orchestra.jobs.ledger.record import Dealt, End, JobRecord
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.sending.patience import Patience
from orchestra.jobs.sending.runner import Runner

SEEDS = pytest.mark.parametrize("seed", range(20))


class Sender:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.sent: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}

    async def send(self, call: Call) -> Outcome:
        assert call.payload is not None
        text = call.payload["messages"][0]["content"]
        self.sent[text] += 1
        loop: Any = asyncio.get_running_loop()
        self.first.setdefault(text, loop.time())
        await asyncio.sleep(self.seconds * loop.dice.random())
        self.answered[text] += 1
        self.last[text] = loop.time()

        async def body() -> Any:
            yield b'{"choices":[]}'

        return Outcome(200, (), body(), "one/m")


def prepared(path: Path, count: int) -> tuple[JobStore, JobRecord]:
    store = JobStore(path / "jobs.db")
    job = store.create("j", created=0.0, model=None, deadline=None, source=None)
    parser = LineParser(model="m")
    lines = [
        parser.from_object(at, {"messages": [{"role": "user", "content": f"q{at}"}]}) for at in range(1, count + 1)
    ]
    store.add(job.id, lines)
    store.seal(job.id)
    return store, job


def running(store: JobStore, job: JobRecord, sender: Sender, window: int = 8) -> Runner:
    return Runner(
        store, job, sender.send, window=window, patience=Patience(), on_ended=lambda count: None, alone=True
    )


@SEEDS
@virtual
async def test_lines_that_come_back_are_sent_once(tmp_path: Path, seed: int):
    """However the rewinds fall between reading the ledger and writing it."""
    store, job = prepared(tmp_path, 60)
    sender = Sender(seconds=0.3)
    runner = running(store, job, sender)

    async def deal() -> None:
        numbers = [*range(1, 61)]
        loop: Any = asyncio.get_running_loop()
        loop.dice.shuffle(numbers)
        while numbers:
            some, numbers = numbers[:4], numbers[4:]
            await asyncio.to_thread(store.batches.deal, job.id, {0: Dealt(some)})
            runner.rewind()
            await asyncio.sleep(0.1 * loop.dice.random())
        runner.loaded = True
        runner.stir()

    async with asyncio.TaskGroup() as group:
        group.create_task(runner.run())
        group.create_task(deal())
    assert set(sender.sent.values()) == {1}
    assert store.tally(job.id).done == 60
    store.close()


@SEEDS
@virtual
async def test_a_line_that_is_answered_elsewhere_is_not_sent_any_more(tmp_path: Path, seed: int):
    """Most of what waits, or is under way, is answered by a batch that comes in late."""
    store, job = prepared(tmp_path, 60)
    sender = Sender(seconds=10.0)
    runner = running(store, job, sender)
    store.batches.deal(job.id, {0: Dealt(range(1, 61))})
    runner.loaded = True

    brought = 0.0

    async def bring(numbers: Sequence[int]) -> None:
        nonlocal brought
        await asyncio.sleep(1.0)
        brought = asyncio.get_running_loop().time()
        ends = [End(number, response=b"{}", status_code=200, via="batch") for number in numbers]
        await asyncio.to_thread(store.finish, job.id, ends)
        runner.forgo(numbers)

    async with asyncio.TaskGroup() as group:
        group.create_task(runner.run())
        group.create_task(bring(range(1, 51)))
    for told in (sender.first, sender.last):
        assert not any(at > brought for text, at in told.items() if int(text[1:]) <= 50)
    assert set(sender.sent.values()) == {1}
    assert all(sender.answered[f"q{number}"] == 1 for number in range(51, 61))
    assert store.tally(job.id).done == 60
    store.close()
