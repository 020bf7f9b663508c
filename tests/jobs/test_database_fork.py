"""A forked child of a process that has the ledger open uses it by itself, and so does its parent."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from orchestra.errors import JobError
from orchestra.jobs.ledger.store import JobStore


def in_child(work: Callable[[], object]) -> bool:
    """Return whether ``work`` comes to an end in a forked child."""
    if not (pid := os.fork()):
        try:
            signal.alarm(50)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def create(store: JobStore, name: str) -> None:
    store.create(name, created=1.0, model=None, deadline=None, source=None)


def names(store: JobStore) -> set[str]:
    return {job.name for job in store.jobs()}


def test_both_go_on(tmp_path: Path) -> None:
    with closing(JobStore(tmp_path / "jobs.db")) as store:
        create(store, "before")

        def work() -> None:
            assert names(store) == {"before"}
            create(store, "child")

        assert in_child(work)
        create(store, "parent")
        assert names(store) == {"before", "child", "parent"}


def test_while_others_write_and_read(tmp_path: Path) -> None:
    with closing(JobStore(tmp_path / "jobs.db")) as store:
        stop, made = threading.Event(), [0, 0]

        def write(which: int) -> None:
            while not stop.is_set():
                create(store, f"{which}-{made[which]}")
                made[which] += 1
                names(store)

        threads = [threading.Thread(target=write, args=(which,), daemon=True) for which in (0, 1)]
        for thread in threads:
            thread.start()
        forked = [in_child(lambda number=number: create(store, f"child-{number}")) for number in range(10)]  # type: ignore[misc]
        stop.set()
        for thread in threads:
            thread.join(50)
        assert all(forked)
        assert len(names(store)) == sum(made) + 10


def test_a_transaction_that_does_not_end_holds_no_fork_up(tmp_path: Path) -> None:
    with closing(JobStore(tmp_path / "jobs.db")) as store:
        began, done = threading.Event(), threading.Event()

        def hold() -> None:
            with store.database.writing():
                began.set()
                done.wait(50)

        thread = threading.Thread(target=hold)
        thread.start()
        began.wait(50)
        at = time.monotonic()
        assert in_child(lambda: None)
        assert time.monotonic() - at < 40
        done.set()
        thread.join()
        create(store, "after")
        assert names(store) == {"after"}


def test_one_that_is_closed_stays_so(tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.db")
    assert in_child(lambda: None)
    store.close()

    def work() -> None:
        with pytest.raises(JobError, match="was closed"):
            names(store)

    work()
    assert in_child(work)


@pytest.mark.parametrize("value", [1 << 70, "\ud800"])
def test_what_it_cannot_hold_is_told(tmp_path: Path, value: object) -> None:
    with (
        closing(JobStore(tmp_path / "jobs.db")) as store,
        pytest.raises(JobError, match="cannot hold"),
        store.database.writing() as db,
    ):
        db.execute("SELECT ?", (value,))
