"""The budget file, and the thread that exchanges with it."""

import asyncio
import gc
import json
import logging
import os
import sqlite3
import stat
import threading
import time

import pytest
from shared_lab import terms

from orchestra.budget import Budget
from orchestra.budget.shared import SqliteStore, StoreError
from orchestra.budget.shared.account import Request
from orchestra.call import Charge
from orchestra.config import BudgetConfig, LimitsConfig, parse_config
from orchestra.errors import ConfigError
from orchestra.policies.traffic import TrafficClass

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK
LIMITS = LimitsConfig(requests_per_minute=600.0, burst_seconds=10.0)
ONE = Charge()


def request(holder="a", **rest):
    return Request(holder=holder, terms=terms(requests=(100.0, 10.0)), **rest)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sub" / "budget.db"


@pytest.fixture
def open_budget(path):
    """Budgets that share the file, as two processes would."""
    budgets = []

    def make():
        budgets.append(Budget(backend=BudgetConfig(backend=f"sqlite:{path}")))
        return budgets[-1]

    yield make
    for budget in budgets:
        budget.close()


async def until(look):
    """Wait until ``look`` returns something, and return that."""
    for _ in range(4000):
        if seen := look():
            return seen
        await asyncio.sleep(0.01)
    raise AssertionError("it never came")


def pool_of(budget, limits=LIMITS):
    return budget.pool("openai", "key", limits, "gpt-5")


def test_the_file_is_made_for_its_owner_only_with_all_its_companions(path):
    store = SqliteStore(path)
    store.exchange("account", request())
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name
    assert sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()


def test_two_stores_on_one_file_see_one_account(path):
    first, second = SqliteStore(path), SqliteStore(path)
    first.exchange("account", request("a", want={"requests": 60.0}, urgent=True))
    reply = second.exchange("account", request("b", want={"requests": 60.0}, urgent=True))
    assert reply.retry_in > 0
    assert reply.processes == 2
    assert second.look("account")["dimensions"]["requests"]["used"] == pytest.approx(60.0)
    assert second.look("another") is None
    first.close()
    second.close()


@pytest.mark.parametrize("content", [b"not a database " * 100, b"\0" * 4096])
def test_a_file_that_is_no_database_is_refused_with_a_remedy(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"budget\.db: .*not an SQLite database.*move it away"):
        Budget(backend=BudgetConfig(backend=f"sqlite:{path}"))
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_left_alone(path):
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    with pytest.raises(ConfigError, match="another program"):
        SqliteStore(path)


def test_a_file_of_a_newer_version_is_refused(path):
    SqliteStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ConfigError, match="newer version"):
        SqliteStore(path)


def test_a_state_that_is_none_is_told_and_changes_nothing(path):
    store = SqliteStore(path)
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO accounts VALUES ('account', '{}')")
    with pytest.raises(StoreError, match="damaged"):
        store.exchange("account", request())
    assert db.execute("SELECT state FROM accounts").fetchall() == [("{}",)]
    db.close()
    store.exchange("another", request())
    store.close()


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        SqliteStore(tmp_path / "file" / "budget.db")


def test_a_file_that_is_taken_away_is_made_anew(path, caplog):
    store = SqliteStore(path)
    store.exchange("account", request(want={"requests": 60.0}, urgent=True))
    for file in path.parent.iterdir():
        file.unlink()
    reply = store.exchange("account", request(believed={"requests": 60.0}, kept={"requests": 60.0}))
    assert reply.held == {"requests": 0.0}
    assert "was taken away" in caplog.text, "the day's count went with it"
    store.close()


def test_a_locked_file_is_told_as_that(path, monkeypatch):
    monkeypatch.setattr("orchestra.budget.shared.sqlite._BUSY_SECONDS", 0.01)
    store = SqliteStore(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        store.exchange("account", request())
    other.execute("ROLLBACK")
    other.close()
    store.exchange("account", request())
    store.close()


def test_another_start_of_the_machine_is_noticed(path):
    store = SqliteStore(path, clock=lambda: 5000.0, boot=lambda: "first")
    store.exchange("account", request(want={"requests": 60.0}, urgent=True))
    store.close()
    store = SqliteStore(path, clock=lambda: 3.0, boot=lambda: "second")
    assert store.look("account")["processes"] == 0
    assert store.look("account")["dimensions"]["requests"]["available"] == pytest.approx(40.0)
    store.close()


@pytest.mark.parametrize("backend", ["sqlite:", "sqlite", "redis://x", "memory:x", "", 3])
def test_a_backend_that_we_do_not_know_is_refused(backend):
    with pytest.raises(ConfigError, match=r"budget\.backend"):
        parse_config({"budget": {"backend": backend}})


def test_a_relative_path_counts_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = parse_config({"budget": {"backend": "sqlite:run/budget.db"}}).budget
    budget = Budget(backend=config)
    monkeypatch.chdir("/")
    lease = pool_of(budget).acquire_sync(ONE, traffic=INTERACTIVE)
    lease.keep()
    budget.close()
    assert (tmp_path / "run" / "budget.db").exists()


def test_another_clock_than_the_machines_is_refused(path):
    with pytest.raises(ValueError, match="monotonic"):
        Budget(backend=BudgetConfig(backend=f"sqlite:{path}"), clock=lambda: 0.0)


# The thread


async def test_two_budgets_on_one_file_share_the_limit(open_budget):
    start = time.monotonic()
    first, second = pool_of(open_budget()), pool_of(open_budget())
    leases = [await first.acquire(ONE, traffic=INTERACTIVE) for _ in range(60)]
    leases += [await second.acquire(ONE, traffic=INTERACTIVE) for _ in range(40)]
    leases.append(await second.acquire(Charge(requests=10.0), traffic=INTERACTIVE))
    granted = time.monotonic()
    assert time.monotonic() - start > (110 - 100) / 10 - 0.05, "a hundred are spent"
    state = json.loads(json.dumps(second.snapshot()))
    assert state["shared"]["processes"] == 2
    assert state["shared"]["trouble"] is None
    assert state["dimensions"]["requests"]["limit"] == 600.0
    assert state["dimensions"]["requests"]["used"] > 90.0 - 10.0 * (time.monotonic() - granted)


async def test_a_call_that_waits_says_for_which_limit_and_how_long_as_it_does_without_the_file(open_budget):
    limits = LimitsConfig(requests_per_day=5, requests_per_minute=6000.0, max_concurrency=4)
    pool = pool_of(open_budget(), limits)
    for _ in range(4):
        (await pool.acquire(ONE, traffic=BULK, job="nightly")).keep()
    await until(lambda: pool.snapshot()["dimensions"]["requests_per_day"]["used"] == pytest.approx(4.0))
    assert pool.snapshot()["dimensions"]["requests_per_day"]["available"] == pytest.approx(1.0)
    task = asyncio.create_task(pool.acquire(Charge(requests=2.0), traffic=BULK, job="nightly"))
    head = await until(lambda: (told := pool.snapshot()["head"]) and told["seconds"] and told)
    assert head["waits_for"] == "requests_per_day"
    assert 86_400 - 60 < head["seconds"] <= 86_400 + 900 + 1
    assert pool.snapshot()["dimensions"]["requests_per_day"]["room_in"] == pytest.approx(head["seconds"], abs=5.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_while_the_slice_lasts_nothing_is_exchanged(open_budget, monkeypatch):
    budget = open_budget()
    pool = pool_of(budget, LimitsConfig(requests_per_minute=600_000.0))
    for _ in range(3):
        (await pool.acquire(ONE, traffic=INTERACTIVE)).keep()
        await asyncio.sleep(0.3)
    await until(lambda: pool.snapshot()["shared"]["slice"]["requests"] >= 1.0)
    exchanges = []
    exchange = SqliteStore.exchange
    monkeypatch.setattr(
        SqliteStore, "exchange", lambda self, *args: (exchanges.append(1), exchange(self, *args))[1]
    )
    lease = await pool.acquire(ONE, traffic=INTERACTIVE)
    assert lease.waited < 0.001
    assert len(exchanges) <= 1
    lease.keep()


def test_closing_gives_everything_back_at_once_and_use_opens_it_again(open_budget):
    budget, other = open_budget(), open_budget()
    pool = pool_of(budget)
    pool.acquire_sync(ONE, traffic=INTERACTIVE).keep()
    assert pool_of(other).snapshot()["shared"]["processes"] == 1
    budget.close()
    budget.close()
    assert pool_of(other).snapshot()["shared"]["processes"] == 0
    pool.acquire_sync(ONE, traffic=INTERACTIVE).keep()
    assert pool_of(other).snapshot()["shared"]["processes"] == 1


def test_a_budget_that_is_dropped_gives_back_and_leaves_no_thread(path, monkeypatch):
    monkeypatch.setattr("orchestra.budget.shared.borrower._LINGER", 0.05)
    budget = Budget(backend=BudgetConfig(backend=f"sqlite:{path}"))
    pool_of(budget).acquire_sync(ONE, traffic=INTERACTIVE).keep()
    threads = threading.active_count()
    del budget
    gc.collect()
    store = SqliteStore(path)
    assert json.loads(store._db.execute("SELECT state FROM accounts").fetchone()[0])["holders"] == {}
    store.close()
    assert threading.active_count() <= threads


async def test_while_the_file_cannot_be_used_calls_wait_and_then_go_on(open_budget, path, caplog, monkeypatch):
    monkeypatch.setattr("orchestra.budget.shared.sqlite._BUSY_SECONDS", 0.01)
    monkeypatch.setattr("orchestra.budget.shared.borrower._RETRY", 0.05)
    pool = pool_of(open_budget())
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with caplog.at_level(logging.WARNING, "orchestra.budget"):
        task = asyncio.create_task(pool.acquire(ONE, traffic=INTERACTIVE))
        trouble = await until(lambda: pool.snapshot()["shared"]["trouble"])
        await asyncio.sleep(0.2)
        assert not task.done()
        assert "locked" in trouble
        other.execute("ROLLBACK")
        other.close()
        (await asyncio.wait_for(task, 30.0)).keep()
    assert pool.snapshot()["shared"]["trouble"] is None
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2, "once when it failed, once when it went on"
    assert str(path) in told[0]


async def test_the_limits_named_last_count_for_all(open_budget, caplog):
    first, second = open_budget(), open_budget()
    old = pool_of(first)
    (await old.acquire(ONE, traffic=INTERACTIVE)).keep()
    new = LimitsConfig(requests_per_minute=60.0, burst_seconds=10.0)
    (await pool_of(second, new).acquire(ONE, traffic=INTERACTIVE)).keep()
    with caplog.at_level(logging.WARNING, "orchestra.budget"):
        await until(lambda: caplog.text)
    await until(lambda: old.snapshot()["dimensions"]["requests"]["limit"] == 60.0)
    assert "another process has changed the limits" in caplog.text
    pool_of(first)  # asked for again with the same settings: nothing is claimed anew
    await asyncio.sleep(0.3)
    assert pool_of(second, new).snapshot()["dimensions"]["requests"]["limit"] == 60.0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_holds_nothing_of_its_parents(open_budget):
    budget = open_budget()
    pool = pool_of(budget)
    pool.acquire_sync(ONE, traffic=INTERACTIVE).keep()
    assert pool.snapshot()["shared"]["slice"]["requests"] > 0
    child = os.fork()
    if child == 0:
        try:
            nothing = all(slice.stock == 0 for slice in pool._loan.share.slices.values())
            pool.acquire_sync(ONE, traffic=INTERACTIVE).keep()
            two = pool.snapshot()["shared"]["processes"] == 2
            budget.close()
            os._exit(0 if nothing and two else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pool.acquire_sync(ONE, traffic=INTERACTIVE).keep()


def test_pools_without_a_limit_need_no_file(open_budget):
    pool = open_budget().pool("openai", "key", None, "gpt-5")
    assert "shared" not in pool.snapshot()
