"""Failed lines of a job are asked again by ``--retry-failed``, and nothing else is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from run_lab import read

from orchestra.jobs import JobStore
from orchestra.testing import Reply, ScriptedProvider

Make = Callable[..., Any]
RUN = ("run", "in.jsonl", "--out", "out.jsonl", "--job", "j")
BAD = Reply.error(400, "bad_thing", kind="invalid_request_error", message="not like this")


@pytest.mark.parametrize(
    "again", [(*RUN, "--retry-failed"), ("jobs", "resume", "j", "--retry-failed", "--out", "out.jsonl")]
)
def test_failed_lines_are_asked_again(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, again: tuple[str, ...]
) -> None:
    server.script.extend([BAD] * 3)
    batch_file(*range(5))
    code, out, _ = orchestra(*RUN)
    assert code == 1
    assert "failed for: bad_thing (3); each line has its reason; --retry-failed asks them again" in out
    code, _, err = orchestra(*RUN)
    assert (code, len(server.log)) == (1, 5)
    assert "job j: ended already: 2 of 5 answered, 3 failed; --retry-failed asks them again" in err
    assert "asks 3 of them again" in orchestra("jobs", "show", "j")[1]
    code, out, err = orchestra(*RUN, "--dry-run", "--retry-failed")
    assert (code, len(server.log)) == (0, 5)
    assert "job j: exists already; 3 of its 5 lines are to be asked; it has no deadline" in err
    assert "in.jsonl: 3 lines" in out

    code, out, err = orchestra(*again)
    assert (code, len(server.log)) == (0, 8), err
    assert "5 of 5 lines answered, 0 failed" in out
    assert {line["response"]["status_code"] for line in read("out.jsonl")} == {200}
    code, _, err = orchestra(*again)
    assert (code, len(server.log)) == (0, 8)
    assert "job j: answered already; nothing is asked again" in err


def test_a_cancelled_job_can_be_asked_after_all(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    server.default = Reply.error(401, "invalid_api_key", message="wrong key")
    batch_file(1, 2)
    assert orchestra(*RUN)[0] == 1
    assert orchestra("jobs", "cancel", "j")[0] == 0
    code, _, err = orchestra(*RUN)
    assert (code, "was cancelled; nothing is asked again; --retry-failed asks" in err) == (1, True), err
    server.default = Reply()
    code, out, err = orchestra("jobs", "resume", "j", "--retry-failed", "--out", "out.jsonl")
    assert code == 0, err
    assert "2 of 2 lines answered" in out
    assert "ended" in orchestra("jobs", "show", "j")[1]


def test_what_cannot_be_used_is_not_asked(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import sys

    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{broken\n")))
        code, _, err = orchestra("run", "-", "--out", "out.jsonl", "--job", "j", "--retry-failed")
        assert (code, len(server.log)) == (1, 0), err
    assert "1 failed, which cannot be asked" in err


def test_names_are_whole_and_may_be_short(server: ScriptedProvider, orchestra: Make, batch_file: Make) -> None:
    batch_file(1)
    long = "requests-of-the-night-" + "x" * 120
    for name in (long, "requests-other"):
        assert orchestra("run", "in.jsonl", "--out", "out.jsonl", "--job", name)[0] == 0
    code, out, _ = orchestra("jobs", "list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["requests-other", long]
    code, out, _ = orchestra("jobs", "show", "requests-of")
    assert (code, f"job       {long}" in out) == (0, True)
    assert orchestra("jobs", "results", "requests-of", "--out", "again.jsonl")[0] == 0
    assert Path("again.jsonl").read_bytes()
    assert orchestra("jobs", "resume", "requests-of", "--out", "again.jsonl")[0] == 0
    assert f"job {long}: has ended" in orchestra("jobs", "cancel", "requests-of")[1]
    code, _, err = orchestra("jobs", "show", "requests-o")
    assert code == 2
    assert f"how several jobs begin: requests-other, {long}; write more of the name" in err
    assert orchestra("jobs", "show", "")[0] == 2
    assert orchestra("jobs", "show", "nights")[0] == 2


def test_a_narrow_terminal_sees_whole_names(
    server: ScriptedProvider, orchestra: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    name = "requests-of-the-night-0123456789abcdef-and-more"
    with closing(JobStore(".orchestra/jobs.db")) as store:
        store.create(name, created=1e9, model=None, deadline=None, source=None)
    code, out, _ = orchestra("jobs", "list")
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["name", "kind", name, "submitted"])
    assert max(map(len, out.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "130")
    assert orchestra("jobs", "list")[1].splitlines()[1].startswith(f"{name}  submitted  interrupted  0 ")


def test_a_running_job_is_not_said_to_be_cancelled(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    from orchestra.jobs.ledger.lock import JobLock
    from orchestra.jobs.ledger.record import Dealt

    with closing(JobStore(".orchestra/jobs.db")) as store:
        job = store.create("j", created=1.0, model=None, deadline=None, source=None)
        facts: dict[str, Any] = {"provider": "fake", "account": "a", "route": "fake/m", "model": "m"}
        batch = store.batches.open(job.id, path="/x", headers=(), window=1.0, now=1.0, **facts)
        store.batches.deal(job.id, {batch.id: Dealt([])})
        store.batches.seal(batch.id)
        store.batches.creating(batch.id, 1.0)
        store.batches.submitted(batch.id, "b", "x", None, 1.0)
        lock = JobLock(store.path, "j")
    try:
        code, out, err = orchestra("jobs", "cancel", "j")
    finally:
        lock.release()
    assert (code, out, "cancelling" in err) == (2, "", False)
    assert "being run: stop that first" in err


def test_a_store_that_cannot_be_made_is_told(server: ScriptedProvider, orchestra: Make) -> None:
    settings = Path("orchestra.toml")
    Path("file").touch()
    for store in ("file/jobs.db", "file/more/jobs.db", "/proc/none/jobs.db", "x" * 300 + "/jobs.db"):
        settings.write_text(settings.read_text().split("[bulk]")[0] + f'[bulk]\nstore = "{store}"\n')
        code, _, err = orchestra("jobs", "list")
        assert (code, "the job store cannot be made" in err) == (2, True), (store, err)
        code, out, _ = orchestra("doctor")
        assert code == 1
        told = " ".join(out.split())
        assert "cannot be made" in told, told
    assert not deque(server.log)


def test_a_deadline_that_is_near_is_told_to_the_second(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    batch_file(1)
    told = {}
    for name, deadline in (("near", "90 seconds"), ("far", "2 days")):
        assert orchestra("run", "in.jsonl", "--out", "o", "--job", name, "--deadline", deadline)[0] == 0
        out = orchestra("jobs", "show", name)[1]
        (line,) = [line for line in out.splitlines() if line.startswith("deadline")]
        told[name] = line.count(":")
    assert told == {"near": 2, "far": 1}
