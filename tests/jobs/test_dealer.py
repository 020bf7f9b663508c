"""What rides together: lines of one kind, of about one deadline, as many as a batch and a queue hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestra.batches import BatchRoute
from orchestra.call import Call
from orchestra.config import ProviderConfig
from orchestra.dispatch.accounts import Account
from orchestra.dispatch.route_table import Target
from orchestra.jobs.diversion.dealer import Dealer, Ride, Way
from orchestra.jobs.intake.line_parser import LineParser
from orchestra.jobs.ledger.line import Line
from orchestra.jobs.ledger.record import BatchRecord, JobRecord
from orchestra.jobs.ledger.store import JobStore

NOW = 1000.0
DAY = 86_400.0


def route(**config: Any) -> BatchRoute:
    limits = config.pop("limits", [])
    account = Account(
        "one",
        ProviderConfig(kind="openai", base_url="http://p.test/v1", api_key="k", batch=config, limits=limits),
    )
    target = Target("one/m", account, "/chat/completions", "m")
    return BatchRoute.of(target, CALL)[0]


CALL = Call.originate("/v1/chat/completions", {"model": "m"})


class Lab:
    def __init__(self, path: Path) -> None:
        self.store = JobStore(path / "jobs.db")
        self.job: JobRecord = self.store.create("j", created=0.0, model=None, deadline=None, source=None)
        self.now = NOW
        self.ways: dict[int, Ride | Way] = {}
        self.default: Ride | Way = Way.ALONE
        self.dealer = Dealer(self.store, self.job, choose=self.choose, wall=lambda: self.now)

    def choose(self, line: Line, payload: Mapping[str, Any]) -> Ride | Way:
        return self.ways.get(line.number, self.default)

    def add(self, *texts: str) -> None:
        first = self.store.last_number(self.job.id) + 1
        parser = LineParser(model="m")
        self.store.add(
            self.job.id,
            [
                parser.from_object(first + at, {"messages": [{"role": "user", "content": text}], "max_tokens": 8})
                for at, text in enumerate(texts)
            ],
        )

    def deal(self) -> list[BatchRecord]:
        """Deal all that nobody has decided about. Returns the batches that are full."""
        after, sealed = 0, []
        while (dealing := self.dealer.deal(after)) is not None:
            after = dealing.last
            sealed += dealing.sealed
        return sealed

    def numbers(self, record: BatchRecord) -> list[int]:
        return self.store.batches.numbers(record.id)


@pytest.fixture
def lab(tmp_path: Path) -> Any:
    lab = Lab(tmp_path)
    yield lab
    lab.store.close()


def test_a_line_goes_its_way(lab: Lab):
    lab.add("a", "b", "c", "d")
    lab.default = Ride(route(), DAY, NOW + DAY)
    lab.ways = {2: Way.ALONE, 3: Way.LATER}
    assert lab.deal() == []
    (batch,) = lab.dealer.seal()
    assert lab.numbers(batch) == [1, 4]
    assert (batch.state, batch.lines) == ("sealed", 2)
    alone = lab.store.pending(lab.job.id, 0, outlet=0, max_lines=10, max_bytes=1 << 20)
    later = lab.store.pending(lab.job.id, 0, outlet=None, max_lines=10, max_bytes=1 << 20)
    assert ([line.number for line in alone], [line.number for line in later]) == ([2], [3])


@pytest.mark.parametrize(
    ("config", "size"),
    [({"max_requests": 4}, 4), ({"max_bytes": 3000}, 4), ({"limits": [{"enqueued_batch_tokens": 800}]}, 3)],
)
def test_a_batch_is_full_by_count_by_size_and_by_tokens(lab: Lab, config: dict[str, Any], size: int):
    lab.default = Ride(route(**config), DAY, NOW + DAY)
    lab.add(*["x" * 400] * 10)
    sealed = lab.deal() + lab.dealer.seal()
    assert [batch.lines for batch in sealed] == [size] * (10 // size) + [10 % size]
    assert [number for batch in sealed for number in lab.numbers(batch)] == [*range(1, 11)]


def test_what_fits_no_batch_goes_by_itself(lab: Lab):
    lab.default = Ride(route(max_bytes=1000), DAY, NOW + DAY)
    lab.add("short", "x" * 2000, "short too")
    assert lab.deal() == []
    (batch,) = lab.dealer.seal()
    assert lab.numbers(batch) == [1, 3]


def test_other_kinds_ride_apart(lab: Lab):
    one = route()
    ways = [
        one,
        replace(one, name="one/n", model="n"),
        replace(one, path="/embeddings"),
        replace(one, fingerprint="another key"),
        replace(one, headers=(("anthropic-version", "2024-01-01"),)),
        replace(one, credentials=(("openai-project", "p"),)),
    ]
    lab.add(*"abcdef")
    lab.ways = {at + 1: Ride(way, DAY, NOW + DAY) for at, way in enumerate(ways)}
    assert lab.deal() == []
    assert [batch.lines for batch in lab.dealer.seal()] == [1] * 6


def test_lines_that_are_wanted_much_earlier_ride_apart(lab: Lab):
    one = route()
    lab.add(*"abcd")
    lab.ways = {at + 1: Ride(one, DAY, NOW + left) for at, left in enumerate((DAY, DAY + 60, 3600.0, 120.0))}
    lab.deal()
    assert sorted(lab.numbers(batch) for batch in lab.dealer.seal()) == [[1, 2], [3], [4]]


def test_a_batch_is_sent_off_after_its_window(lab: Lab):
    lab.default = Ride(route(window_seconds=2.0, window_max_seconds=5.0), DAY, NOW + DAY)
    assert lab.dealer.due_at() is None
    lab.add("a")
    lab.deal()
    assert lab.dealer.due_at() == NOW + 2
    for _ in range(4):
        lab.now += 1.5
        lab.add("b")
        lab.deal()
    assert lab.dealer.due_at() == NOW + 5
    assert lab.dealer.seal(due_by=NOW + 4.9) == []
    (batch,) = lab.dealer.seal(due_by=NOW + 5)
    assert batch.lines == 5
    assert lab.dealer.riding == 0


def test_a_line_that_is_withdrawn_is_not_counted(lab: Lab):
    job = lab.store.create("w", created=0.0, model=None, deadline=None, source=None, kind="awaited")
    lab.job = job
    lab.dealer = Dealer(lab.store, job, choose=lab.choose, wall=lambda: NOW)
    lab.default = Ride(route(), DAY, NOW + DAY)
    body = b'{"model":"m","messages":[]}'
    for digest in (b"1", b"2", b"3"):
        lab.store.awaited.await_line(job.id, digest, "/v1/chat/completions", body)
    lab.deal()
    assert lab.store.awaited.withdraw(job.id, 2)
    (batch,) = lab.dealer.seal()
    assert batch.lines == 2
    assert not lab.store.awaited.withdraw(job.id, 1), "it is on its way"
