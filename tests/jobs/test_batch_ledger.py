"""The ledger's part about batches: their stages, and that no line is ever in two places or in none."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledger_lab import consistent, filled

from orchestra.errors import JobError
from orchestra.jobs.ledger.batch_ledger import BatchLedger, number_of, wire_id
from orchestra.jobs.ledger.record import BatchRecord, Dealt, End, JobRecord, LineError, OutletTally
from orchestra.jobs.ledger.store import JobStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    store = JobStore(tmp_path / "jobs.db")
    yield store
    store.close()


@pytest.fixture
def batches(store: JobStore) -> BatchLedger:
    return store.batches


@pytest.fixture
def job(store: JobStore) -> JobRecord:
    return filled(store, 10)


def opened(batches: BatchLedger, job: JobRecord, now: float = 100.0, **changes: Any) -> BatchRecord:
    facts: dict[str, Any] = {
        "provider": "openai",
        "account": "f00d",
        "route": "openai/gpt-5-mini",
        "model": "gpt-5-mini",
        "path": "/v1/completions",
        "headers": (("openai-beta", "x"), ("openai-beta", "y")),
        "window": 86_400.0,
    }
    return batches.open(job.id, now=now, **(facts | changes))


def submitted(batches: BatchLedger, job: JobRecord, numbers: Sequence[int] = (), at: float = 100.0) -> BatchRecord:
    record = opened(batches, job)
    batches.deal(job.id, {record.id: Dealt(numbers)})
    batches.seal(record.id)
    batches.creating(record.id, at)
    batches.submitted(record.id, f"batch_{record.id}", "validating", None, at)
    return one(batches, record.id)


def one(batches: BatchLedger, id: int) -> BatchRecord:
    (found,) = [record for job in (1, 2) for record in batches.of_job(job) if record.id == id]
    return found


def waiting(store: JobStore, job: JobRecord, outlet: int | None) -> list[int]:
    return [line.number for line in store.pending(job.id, 0, max_lines=99, max_bytes=1 << 20, outlet=outlet)]


# stages


def test_a_batch_goes_its_way(batches: BatchLedger, job: JobRecord) -> None:
    record = opened(batches, job)
    assert (record.state, record.opened, record.headers) == (
        "open",
        100.0,
        (("openai-beta", "x"), ("openai-beta", "y")),
    )
    assert (record.lines, record.bytes, record.tokens, record.batch_id) == (0, 0, 0, None)
    batches.deal(job.id, {record.id: Dealt([1, 2], bytes=30, tokens=9)})
    batches.deal(job.id, {record.id: Dealt([5], bytes=3, tokens=1)})
    sealed = batches.seal(record.id)
    assert (sealed.state, sealed.lines, sealed.bytes, sealed.tokens) == ("sealed", 3, 33, 10)
    batches.uploaded(record.id, "file-1")
    assert one(batches, record.id).file_id == "file-1"
    batches.creating(record.id, 110.0)
    batches.submitted(record.id, "batch_x", "validating", 5000.0, 111.0)
    batches.seen(record.id, "in_progress", 2)
    assert batches.unfinished() == [one(batches, record.id)]
    seen = one(batches, record.id)
    assert (seen.state, seen.status, seen.finished, seen.expires) == ("submitted", "in_progress", 2, 5000.0)
    assert (seen.creating_at, seen.submitted_at, seen.ended_at) == (110.0, 111.0, None)
    batches.end(record.id, "completed", 200.0)
    ended = one(batches, record.id)
    assert (ended.state, ended.status, ended.ended_at, ended.note) == ("ended", "completed", 200.0, None)
    assert batches.unfinished() == []


STEPS: dict[str, Callable[[BatchLedger, int], object]] = {
    "seal": lambda batches, id: batches.seal(id),
    "uploaded": lambda batches, id: batches.uploaded(id, "file-1"),
    "creating": lambda batches, id: batches.creating(id, 1.0),
    "submitted": lambda batches, id: batches.submitted(id, "batch_x", "validating", None, 2.0),
    "seen": lambda batches, id: batches.seen(id, "in_progress", None),
    "end": lambda batches, id: batches.end(id, "completed", 3.0),
    "abandon": lambda batches, id: batches.abandon(id, "gone", 4.0),
}
WAYS = {
    "open": [],
    "sealed": ["seal"],
    "uploaded": ["seal", "uploaded"],
    "creating": ["seal", "creating"],
    "submitted": ["seal", "creating", "submitted"],
    "ended": ["seal", "creating", "submitted", "end"],
    "abandoned": ["abandon"],
}
ALLOWED = {
    "open": {"seal", "abandon"},
    "sealed": {"seal", "uploaded", "creating", "abandon"},
    "uploaded": {"uploaded", "creating", "abandon"},
    "creating": {"uploaded", "creating", "submitted", "abandon"},
    "submitted": {"submitted", "seen", "end", "abandon"},
    "ended": {"seen", "end"},
    "abandoned": {"seen", "abandon"},
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("state", WAYS)
def test_each_stage_allows_what_comes_next(batches: BatchLedger, job: JobRecord, state: str, step: str) -> None:
    id = opened(batches, job).id
    for before in WAYS[state]:
        STEPS[before](batches, id)
    record = one(batches, id)
    assert record.state == state
    if step in ALLOWED[state]:
        STEPS[step](batches, id)
        return
    with pytest.raises(JobError, match=rf"batch {id} is {state}"):
        STEPS[step](batches, id)
    assert one(batches, id) == record


@pytest.mark.parametrize("state", ["sealed", "submitted", "ended", "abandoned"])
def test_what_is_told_twice_stands_as_it_was(batches: BatchLedger, job: JobRecord, state: str) -> None:
    id = opened(batches, job).id
    for step in WAYS[state]:
        STEPS[step](batches, id)
    record = one(batches, id)
    again: dict[str, Callable[[], object]] = {
        "sealed": lambda: batches.seal(id),
        "submitted": lambda: batches.submitted(id, "batch_x", "other", 9.0, 9.0),
        "ended": lambda: batches.end(id, "other", 9.0),
        "abandoned": lambda: batches.abandon(id, "other", 9.0),
    }
    again[state]()
    assert one(batches, id) == record
    assert batches.p90(record.outlet, least=2) is None


def test_a_creation_that_is_tried_again_is_as_old_as_the_first_try(batches: BatchLedger, job: JobRecord) -> None:
    id = opened(batches, job).id
    batches.seal(id)
    batches.creating(id, 10.0)
    batches.creating(id, 20.0)
    assert one(batches, id).creating_at == 10.0
    batches.uploaded(id, "file-2")
    assert (one(batches, id).state, one(batches, id).file_id) == ("uploaded", "file-2")


def test_a_batch_has_one_name_at_the_provider(batches: BatchLedger, job: JobRecord) -> None:
    record = submitted(batches, job)
    with pytest.raises(JobError, match="already"):
        batches.submitted(record.id, "batch_other", "validating", None, 1.0)
    assert one(batches, record.id) == record


def test_a_batch_that_is_gone_is_told(store: JobStore, batches: BatchLedger, job: JobRecord) -> None:
    record = opened(batches, job)
    store.discard(job.id)
    for act in (
        lambda: batches.seal(record.id),
        lambda: batches.release(record.id),
        lambda: batches.deal(job.id, {record.id: Dealt([1])}),
    ):
        with pytest.raises(JobError, match="removed"):
            act()
    assert batches.lines(record.id, 0, max_lines=9, max_bytes=9) == []


def test_credentials_are_refused(batches: BatchLedger, job: JobRecord) -> None:
    with pytest.raises(ValueError, match="x-api-key") as caught:
        opened(batches, job, headers=(("X-Api-Key", "hidden"), ("anthropic-version", "2023-06-01")))
    assert "hidden" not in str(caught.value)
    assert batches.of_job(job.id) == []


# lines


def test_only_undecided_lines_are_dealt(store: JobStore, batches: BatchLedger, job: JobRecord) -> None:
    store.finish(job.id, [End(1)])
    first, second = opened(batches, job), opened(batches, job)
    assert batches.deal(job.id, {first.id: Dealt([1, 2, 3], 30, 3), 0: Dealt([4])}) == 3
    assert batches.deal(job.id, {second.id: Dealt([2, 3, 4, 5, 99], 50, 5)}) == 1
    assert batches.deal(job.id, {second.id: Dealt([2, 3], 20, 2)}) == 0
    assert waiting(store, job, first.id) == [2, 3]
    assert waiting(store, job, second.id) == [5]
    assert waiting(store, job, 0) == [4]
    assert waiting(store, job, None) == [6, 7, 8, 9, 10]
    assert [one(batches, each.id).lines for each in (first, second)] == [2, 1]
    assert (one(batches, second.id).bytes, batches.pending(first.id)) == (50, 2)


def test_a_batch_takes_lines_of_its_job_while_it_is_open(
    store: JobStore, batches: BatchLedger, job: JobRecord
) -> None:
    other = filled(store, 2, "other")
    record = opened(batches, job)
    with pytest.raises(JobError, match=f"of job {other.id}"):
        batches.deal(other.id, {record.id: Dealt([1])})
    batches.seal(record.id)
    with pytest.raises(JobError, match="is sealed"):
        batches.deal(job.id, {0: Dealt([1]), record.id: Dealt([2])})
    assert waiting(store, job, 0) == []  # all of it, or nothing


def test_lines_of_a_batch_come_in_pages(batches: BatchLedger, job: JobRecord) -> None:
    record = opened(batches, job)
    batches.deal(job.id, {record.id: Dealt([2, 4, 6, 8])})
    assert [line.number for line in batches.lines(record.id, 0, max_lines=3, max_bytes=99)] == [2, 4, 6]
    assert [line.number for line in batches.lines(record.id, 2, max_lines=9, max_bytes=8)] == [4, 6]
    (last,) = batches.lines(record.id, 6, max_lines=9, max_bytes=0)
    assert (last.number, last.custom_id, last.path, last.body) == (8, "id-8", "/v1/completions", b'{"n":8}')


def test_released_lines_go_where_they_are_sent(store: JobStore, batches: BatchLedger, job: JobRecord) -> None:
    record = submitted(batches, job, [1, 2, 3, 4, 5, 6])
    store.finish(job.id, [End(1)])
    assert batches.release(record.id, [1, 2, 3, 9]) == 2
    assert batches.release(record.id, [2, 3]) == 0
    assert batches.release(record.id, [4], outlet=0, attempted=True) == 1
    assert batches.release(record.id, []) == 0
    assert (waiting(store, job, 0), waiting(store, job, record.id)) == ([4], [5, 6])
    assert batches.release(record.id, attempted=True) == 2
    assert waiting(store, job, None) == [2, 3, 5, 6, 7, 8, 9, 10]
    with pytest.raises(ValueError, match="batch"):
        batches.release(record.id, outlet=record.id)
    store.fail_rest(job.id, LineError("x", "y"))
    attempts = [result.attempts for result in store.results(job.id, 0, max_lines=6, max_bytes=99)]
    assert attempts == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("over", ["end", "abandon"])
def test_what_a_batch_leaves_goes_back(store: JobStore, batches: BatchLedger, job: JobRecord, over: str) -> None:
    record = submitted(batches, job, [1, 2, 3])
    batches.release(record.id, [2], outlet=0)
    store.finish(job.id, [End(1, via="batch")])
    assert STEPS[over](batches, record.id) == 1
    assert (waiting(store, job, 0), waiting(store, job, None)) == ([2], [3, 4, 5, 6, 7, 8, 9, 10])
    assert STEPS[over](batches, record.id) == 0


def test_a_late_answer_of_a_batch_loses(store: JobStore, batches: BatchLedger, job: JobRecord) -> None:
    record = submitted(batches, job, [1, 2])
    batches.release(record.id, outlet=0)
    assert store.finish(job.id, [End(1, route="openai/m", usd=1.0)]) == 1
    assert store.finish(job.id, [End(n, route="openai/m", via="batch", usd=0.5) for n in (1, 2)]) == 1
    assert [(tally.via, tally.lines, tally.usd) for tally in store.outlets(job.id)] == [
        ("batch", 1, 0.5),
        ("sync", 1, 1.0),
    ]


# what there is


def test_batches_are_listed_oldest_first(store: JobStore, batches: BatchLedger, job: JobRecord) -> None:
    other = filled(store, 2, "other")
    newer, older = opened(batches, job, now=20.0), opened(batches, other, now=10.0)
    gone = opened(batches, job, now=5.0)
    batches.abandon(gone.id, "the provider refused it \ud83d", 6.0)
    assert [record.id for record in batches.unfinished()] == [older.id, newer.id]
    assert [record.id for record in batches.unfinished(job.id)] == [newer.id]
    assert [record.id for record in batches.of_job(job.id)] == [gone.id, newer.id]
    assert (one(batches, gone.id).note or "").startswith("the provider refused it")
    assert len({record.key for record in (newer, older, gone)}) == 3


def test_claimed_batches_are_those_of_the_provider(batches: BatchLedger, job: JobRecord) -> None:
    mine, ended = submitted(batches, job), submitted(batches, job)
    batches.end(ended.id, "expired", 1.0)
    opened(batches, job)
    assert batches.claimed("openai") == {mine.batch_id, ended.batch_id}
    assert batches.claimed("azure") == set()


def test_p90_is_that_of_the_latest(batches: BatchLedger, job: JobRecord) -> None:
    outlet = "openai/gpt-5-mini|/v1/completions"

    def took(seconds: float, at: float, *, count: bool = True) -> None:
        batches.end(submitted(batches, job, at=at - seconds).id, "completed", at, count=count)

    took(500.0, 1000.0)
    took(9000.0, 10_000.0, count=False)
    took(100.0, 1001.0)
    assert (batches.p90(outlet), batches.p90(outlet, least=2)) == (None, 500.0)
    took(300.0, 1002.0)
    assert batches.p90(outlet) == 500.0
    assert batches.p90("another") is None
    for n in range(1, 101):
        took(float(n), 2000.0 + n)
    assert batches.p90(outlet) == 90.0  # of 1 to 100: those before are forgotten


def test_ids_on_the_wire(job: JobRecord) -> None:
    assert number_of(job.tag, wire_id(job.tag, 123)) == 123
    for said in ("", job.tag, f"{job.tag}-", f"{job.tag}-0", f"{job.tag}-07", f"{job.tag}-1 ", f"{job.tag}-1\n"):
        assert number_of(job.tag, said) is None
    for said in (
        f"{job.tag}-+1",
        f"{job.tag}--1",
        f"{job.tag}-\u0661",
        f"{job.tag}-{'9' * 19}",
        "0123456789ab-1",
        "1",
    ):
        assert number_of(job.tag, said) is None


# in any order, by several, and killed in the midst


LINES = 12
NUMBERS = st.lists(st.integers(1, LINES + 1), max_size=6, unique=True)


class Ledger(RuleBasedStateMachine):
    """Where each line is, kept beside the ledger in the plainest way."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = JobStore(self.folder / "jobs.db")
        self.outlet: dict[int, int | None] = dict.fromkeys(range(1, LINES + 1))
        self.ends: dict[int, End] = {}
        self.stage: dict[int, str] = {}
        self.dealt: dict[int, int] = {}

    @initialize()
    def fill(self) -> None:
        self.job = filled(self.store, LINES)

    def pending_in(self, outlet: int | None) -> list[int]:
        return [n for n, where in self.outlet.items() if where == outlet and n not in self.ends]

    def some(self, data: st.DataObject, *stages: str) -> int | None:
        ids = [id for id, stage in self.stage.items() if stage in stages]
        return data.draw(st.sampled_from(ids)) if ids else None

    @rule()
    def open(self) -> None:
        if len(self.stage) < 4:
            id = opened(self.store.batches, self.job).id
            self.stage[id], self.dealt[id] = "open", 0

    @rule(data=st.data(), numbers=NUMBERS, alone=NUMBERS)
    def deal(self, data: st.DataObject, numbers: list[int], alone: list[int]) -> None:
        id = self.some(data, "open")
        dealing = ({id: numbers} if id else {}) | {0: alone}
        expected = 0
        for outlet, wanted in dealing.items():
            free = [n for n in wanted if n in self.pending_in(None)]
            expected += len(free)
            self.outlet.update(dict.fromkeys(free, outlet))
            if outlet:
                self.dealt[outlet] += len(free)
        outlets = {outlet: Dealt(wanted) for outlet, wanted in dealing.items()}
        assert self.store.batches.deal(self.job.id, outlets) == expected

    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        if id := self.some(data, "open"):
            for step in ("seal", "uploaded", "creating"):
                STEPS[step](self.store.batches, id)
            self.store.batches.submitted(id, f"batch_{id}", "validating", None, 5.0)
            self.stage[id] = "submitted"

    @rule(data=st.data(), numbers=st.none() | NUMBERS, outlet=st.sampled_from([None, 0]), attempted=st.booleans())
    def release(self, data: st.DataObject, numbers: list[int] | None, outlet: int | None, attempted: bool) -> None:
        if id := self.some(data, "open", "submitted", "over"):
            gone = [n for n in self.pending_in(id) if numbers is None or n in numbers]
            released = self.store.batches.release(id, numbers, outlet=outlet, attempted=attempted)
            assert released == len(gone)
            self.outlet.update(dict.fromkeys(gone, outlet))

    @rule(data=st.data(), by_us=st.booleans())
    def finish_batch(self, data: st.DataObject, by_us: bool) -> None:
        id = self.some(data, *(["open", "submitted"] if by_us else ["submitted"]))
        if id:
            left = self.pending_in(id)
            assert STEPS["abandon" if by_us else "end"](self.store.batches, id) == len(left)
            self.outlet.update(dict.fromkeys(left))
            self.stage[id] = "over"

    @rule(
        ends=st.lists(
            st.builds(
                End,
                st.integers(1, LINES + 1),
                st.sampled_from([None, LineError("x", "y")]),
                input_tokens=st.integers(0, 9),
                route=st.sampled_from([None, "a/m", "b/m"]),
                via=st.sampled_from(["sync", "batch", None]),
                usd=st.sampled_from([None, 0.25, 0.5]),
            ),
            max_size=4,
        )
    )
    def finish(self, ends: list[End]) -> None:
        before = len(self.ends)
        for end in ends:
            if end.number <= LINES:
                self.ends.setdefault(end.number, end)
        assert self.store.finish(self.job.id, ends) == len(self.ends) - before

    @precondition(lambda self: len(self.ends) > LINES // 2)
    @rule()
    def give_up(self) -> None:
        error = LineError("expired", "")
        rest = [n for n in self.outlet if n not in self.ends]
        assert self.store.fail_rest(self.job.id, error) == len(rest)
        self.ends |= {n: End(n, error, via=None) for n in rest}

    @precondition(lambda self: any(end.error for end in self.ends.values()))
    @rule()
    def retry_failed(self) -> None:
        unfinished = {id for id, stage in self.stage.items() if stage != "over"}
        again = [n for n, end in self.ends.items() if end.error and self.outlet[n] not in unfinished]
        told = self.store.retriable(self.job.id, 0, max_lines=99, max_bytes=1 << 20)
        assert [line.number for line in told] == sorted(again)
        assert self.store.retry_failed(self.job.id, now=9.0) == len(again)
        for n in again:
            del self.ends[n]
            self.outlet[n] = None

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = JobStore(self.folder / "jobs.db")

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "job"):
            return
        consistent(self.store.path)
        for outlet in (None, 0, *self.stage):
            assert waiting(self.store, self.job, outlet) == self.pending_in(outlet)
        every = self.store.pending(self.job.id, 0, max_lines=99, max_bytes=1 << 20)
        assert [line.number for line in every] == [n for n in self.outlet if n not in self.ends]
        records = self.store.batches.of_job(self.job.id)
        assert {record.id: record.lines for record in records} == self.dealt
        unfinished = {record.id for record in self.store.batches.unfinished()}
        assert unfinished == {id for id, stage in self.stage.items() if stage != "over"}
        for result in self.store.results(self.job.id, 0, max_lines=99, max_bytes=99):
            end = self.ends[result.number]
            assert (result.error, result.route, result.via, result.usd) == (end.error, end.route, end.via, end.usd)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


DEALER = """
import sys, time
from orchestra.jobs.ledger.record import Dealt
from orchestra.jobs.ledger.store import JobStore
store, batch = JobStore(sys.argv[1]), int(sys.argv[2])
job = store.find("j").id
print("ready", flush=True)
sys.stdin.readline()
dealt = 0
while lines := store.pending(job, 0, outlet=None, max_lines=7, max_bytes=1 << 20):
    before, dealt = dealt, dealt + store.batches.deal(job, {batch: Dealt([line.number for line in lines])})
    print(dealt - before, flush=True)
    if dealt and not before:  # when both have dealt, they go on
        sys.stdin.readline()
    time.sleep(0.002)  # or the one that has the file may keep it until all is dealt
"""


def test_two_processes_never_deal_a_line_twice(store: JobStore) -> None:
    job = filled(store, 1000)
    records = [opened(store.batches, job) for _ in range(2)]
    dealers = [
        subprocess.Popen(
            [sys.executable, "-c", DEALER, store.path, str(record.id)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for record in records
    ]
    for dealer in dealers:
        assert dealer.stdout is not None
        assert dealer.stdout.readline() == "ready\n"
    for dealer in dealers:
        assert dealer.stdin is not None
        dealer.stdin.write("go\n")
        dealer.stdin.flush()
    first = [next(count for line in dealer.stdout if (count := int(line))) for dealer in dealers if dealer.stdout]
    said = []
    for dealer in dealers:
        assert dealer.stdin is not None
        dealer.stdin.write("on\n")
        dealer.stdin.flush()
    for dealer in dealers:
        said.append(dealer.communicate(timeout=50)[0].split())
    assert [dealer.returncode for dealer in dealers] == [0, 0]
    dealt = [count + sum(map(int, counts)) for count, counts in zip(first, said, strict=True)]
    assert sum(dealt) == 1000
    assert min(dealt) > 0
    assert [store.batches.pending(record.id) for record in records] == dealt
    assert [one(store.batches, record.id).lines for record in records] == dealt
    consistent(store.path)


WORKER = """
import random, sys
from orchestra.jobs.ledger.record import Dealt, End
from orchestra.jobs.ledger.store import JobStore
store = JobStore(sys.argv[1])
job, batches = store.find("j").id, store.batches
print("ready", flush=True)
while lines := store.pending(job, 0, max_lines=40, max_bytes=1 << 20):
    facts = {"provider": "p", "account": "a", "route": "p/m", "model": "m", "path": "/", "headers": ()}
    batch = batches.open(job, **facts, window=1.0, now=0.0).id
    numbers = [line.number for line in lines]
    batches.deal(job, {batch: Dealt(numbers[:30]), 0: Dealt(numbers[30:])})
    batches.seal(batch)
    batches.creating(batch, 0.0)
    batches.submitted(batch, f"batch_{batch}", "validating", None, 0.0)
    store.finish(job, [End(n, route="p/m", via="batch", usd=0.5) for n in random.sample(numbers, 3)])
    batches.release(batch, numbers[10:20], outlet=0, attempted=True)
    batches.end(batch, "completed", 1.0)
"""


def test_killed_at_any_instant_it_leaves_a_sound_ledger(store: JobStore) -> None:
    number = filled(store, 3000).id
    chance = random.Random(5)
    for _ in range(4):
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, store.path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        while not store.batches.of_job(number):
            time.sleep(0.002)
        time.sleep(chance.uniform(0.02, 0.2))  # of another process's time
        worker.kill()
        worker.communicate()
        consistent(store.path)
    job = store.find("j")
    assert job is not None
    assert store.batches.of_job(job.id)
    for record in store.batches.unfinished(job.id):
        store.batches.abandon(record.id, "its process was killed", 1.0)
    store.fail_rest(job.id, LineError("cancelled", ""))
    consistent(store.path)
    assert store.tally(job.id).pending == 0
    assert [
        each
        for each in store.outlets(job.id)
        if each != OutletTally("p/m", "batch", each.lines, 0, 0, 0, each.lines / 2, 0)
    ] == []
