"""``orchestra jobs``: what there is, and what can be done with it."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from run_lab import Hurry, read, settings_with_batches, start, wait_for

from orchestra.client import Orchestra
from orchestra.errors import LocalEngineError
from orchestra.jobs import JobStore
from orchestra.jobs.ledger.line import Line
from orchestra.jobs.ledger.lock import JobLock
from orchestra.jobs.ledger.record import End
from orchestra.testing import BatchScript, Reply, ScriptedProvider

Make = Callable[..., Any]


def test_jobs_are_listed_and_shown(server: ScriptedProvider, orchestra: Make, batch_file: Make) -> None:
    assert orchestra("jobs", "list") == (0, "no jobs yet in .orchestra/jobs.db\n", "")
    assert not Path(".orchestra").exists()
    assert orchestra("jobs", "show", "none")[0] == 2
    batch_file(*range(3))
    assert orchestra("run", "in.jsonl", "--out", "out.jsonl", "--job", "nightly [bold]")[0] == 0
    code, out, _ = orchestra("jobs", "list")
    assert code == 0
    assert "nightly [bold]" in out
    assert "ended" in out
    code, out, _ = orchestra("jobs", "show", "nightly [bold]")
    assert "answered  3" in out
    code, _, err = orchestra("jobs", "show", "other")
    assert code == 2
    assert "`orchestra jobs list`" in err
    assert orchestra("jobs", "results", "nightly [bold]", "--out", "again.jsonl")[0] == 0
    assert Path("again.jsonl").read_bytes() == Path("out.jsonl").read_bytes()


def test_settings_are_one_ledger_from_wherever_they_are_used(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_file(1)
    assert orchestra("run", "in.jsonl", "--out", "out.jsonl")[0] == 0
    asked = len(server.log)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, _, err = orchestra("run", "../in.jsonl", "--out", "out.jsonl", "--config", "../orchestra.toml")
    assert (code, len(server.log)) == (0, asked), "nothing is paid for twice"
    ledger = f"ledger: {tmp_path}/.orchestra/jobs.db\n"
    assert err.startswith(f"settings: ../orchestra.toml; {ledger}")
    assert orchestra("jobs", "list", "--config", "../orchestra.toml")[2] == ledger


def test_jobs_of_a_store_that_cannot_be_opened(server: ScriptedProvider, orchestra: Make) -> None:
    Path(".orchestra/jobs.db").mkdir(parents=True)
    for command in (("list",), ("show", "x"), ("results", "x")):
        code, _, err = orchestra("jobs", *command)
        assert (code, "cannot be made" in err) == (2, True), err


def test_a_deadline_beyond_every_calendar(server: ScriptedProvider, orchestra: Make, batch_file: Make) -> None:
    batch_file(1)
    assert orchestra("run", "in.jsonl", "--out", "o", "--job", "j", "--deadline", "9" * 300 + "d")[0] == 0
    code, out, _ = orchestra("jobs", "show", "j")
    assert (code, "deadline" in out) == (0, True)


@contextmanager
def released(lock: JobLock) -> Iterator[None]:
    try:
        yield
    finally:
        lock.release()


RUN = ("run", "in.jsonl", "--out", "out.jsonl", "--job", "j", "--deadline", "24h")


@pytest.fixture
def riding(server: ScriptedProvider, batch_file: Make, tmp_path: Path) -> Iterator[JobStore]:
    """An interrupted job of 80 lines in two open batches, of each of which ten lines are answered."""
    Path("orchestra.toml").write_text(settings_with_batches(server))
    server.batch_default = BatchScript(end="completed", running=4000.0, answered=40)
    batch_file(*range(80))
    process = start(*RUN)
    with closing(JobStore(tmp_path / ".orchestra" / "jobs.db")) as store:
        wait_for(lambda: [batch.state for batch in store.batches.unfinished()] == ["submitted"] * 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=50) == 130
        process.communicate()
        server.log.clear()
        yield store


def tally(store: JobStore) -> tuple[int, int, int]:
    counts = store.tally(1)
    return counts.total, counts.done, counts.failed


def test_cancel_collects_what_was_answered(
    server: ScriptedProvider, hurry: Hurry, riding: JobStore, orchestra: Make
) -> None:
    hurry.by += 1000.0  # a quarter of the time that the batches take
    code, out, err = orchestra("jobs", "cancel", "j")
    assert code == 0, err
    assert "waiting for what was answered" in err
    assert "cancelled, with 60 lines without an answer; 20 more were answered before" in out
    assert sum(line.endswith("(40 lines): cancelled") for line in out.splitlines()) == 2
    assert tally(riding) == (80, 20, 60)
    assert riding.failures(1) == [("cancelled", 60)]
    assert sum(hit.path.endswith("/cancel") for hit in server.log) == 2
    assert {batch.state for batch in riding.batches.of_job(1)} == {"ended"}

    code, out, _ = orchestra("jobs", "list")
    assert out.splitlines()[1].split()[:7] == ["j", "submitted", "cancelled", "80", "20", "60", "0"]
    code, out, _ = orchestra("jobs", "show", "j")
    assert "state     cancelled" in out
    assert "60 x cancelled" in out
    assert "ended (cancelled), after" in out
    assert "30 left it unanswered" in out
    before = len(server.log)
    code, out, err = orchestra("jobs", "cancel", "j")
    assert (code, out, len(server.log)) == (0, "job j: has ended already; there is nothing to cancel\n", before)
    code, out, err = orchestra(*RUN)
    assert (code, len(server.log)) == (1, before)
    assert "was cancelled; nothing is asked again" in err
    assert [line["error"] is None for line in read("out.jsonl")].count(True) == 20


def test_cancel_now_waits_for_nothing(
    server: ScriptedProvider, hurry: Hurry, riding: JobStore, orchestra: Make
) -> None:
    server.batch_default = BatchScript(cancelling=1e6)
    hurry.by += 1000.0
    code, out, err = orchestra("jobs", "cancel", "j", "--now")
    assert (code, err) == (0, "")
    assert "job j: cancelled, with 80 lines without an answer\n" in out
    assert tally(riding) == (80, 0, 80)
    assert sum(hit.path.endswith("/cancel") for hit in server.log) == 2
    assert not any("/content" in hit.path for hit in server.log)
    assert riding.batches.unfinished() == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda text: (
                text.replace("[providers.acme.", "[providers.acme2.")
                .replace("[providers.acme]", "[providers.acme2]")
                .replace("acme/", "acme2/")
            ),
            "[providers.acme] with its key is not set",
        ),
        (
            lambda text: text.replace("sk-hidden", "sk-another-one"),
            "it was made with another key of [providers.acme]",
        ),
    ],
)
def test_cancel_says_what_it_cannot_reach(
    server: ScriptedProvider, riding: JobStore, orchestra: Make, change: Callable[[str], str], told: str
) -> None:
    path = Path("orchestra.toml")
    path.write_text(change(path.read_text()))
    names = [batch.batch_id for batch in riding.batches.unfinished()]
    code, out, _ = orchestra("jobs", "cancel", "j")
    assert code == 0
    for name in names:
        assert f"{name} by acme/m (40 lines): could not be cancelled, and may go on there: {told}" in out
    assert "sk-" not in out
    assert tally(riding) == (80, 0, 80)
    assert riding.batches.unfinished() == []
    assert server.log == []


def test_cancel_survives_a_provider_that_refuses(
    server: ScriptedProvider, riding: JobStore, orchestra: Make
) -> None:
    server.routes["POST /v1/batches/*"] = deque([Reply.error(403, "no_rights", message="not you")] * 2)
    code, out, _ = orchestra("jobs", "cancel", "j")
    assert code == 0
    assert out.count("could not be cancelled, and may go on there: ") == 2
    assert "answered 403 no_rights" in out
    assert tally(riding) == (80, 0, 80)


def test_cancel_asks_again_where_a_provider_is_busy(
    server: ScriptedProvider, riding: JobStore, orchestra: Make
) -> None:
    server.routes["POST /v1/batches/*"] = deque([Reply.error(503, "busy"), Reply(drop=True)])
    code, out, _ = orchestra("jobs", "cancel", "j", "--now")
    assert (code, out.count("(40 lines): cancelled\n")) == (0, 2), out


def test_cancel_finds_a_batch_whose_creation_nobody_recorded(
    server: ScriptedProvider, riding: JobStore, orchestra: Make
) -> None:
    names = {batch.batch_id for batch in riding.batches.unfinished()}
    with riding.database.writing() as db:
        db.execute("UPDATE batches SET state = 'creating', batch_id = NULL")
    code, out, _ = orchestra("jobs", "cancel", "j", "--now")
    assert code == 0
    assert all(f"{name} by acme/m (40 lines): cancelled" in out for name in names), out
    assert riding.batches.unfinished() == []


def test_an_interrupted_cancel_can_be_repeated(
    server: ScriptedProvider, riding: JobStore, orchestra: Make
) -> None:
    server.routes["GET /v1/batches/*"] = deque([Reply.error(503, "busy")] * 1000)
    process = start("jobs", "cancel", "j")
    wait_for(lambda: sum(hit.path.endswith("/cancel") for hit in server.log) == 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=50)
    assert process.returncode == 130
    assert "interrupted; `orchestra jobs cancel j` goes on, with --now without waiting" in err
    assert "Traceback" not in err
    assert tally(riding) == (80, 0, 0)
    server.routes.clear()
    assert orchestra("jobs", "cancel", "j")[0] == 0
    assert sum(tally(riding)[1:]) == 80


def test_a_running_job_is_not_cancelled(server: ScriptedProvider, riding: JobStore, orchestra: Make) -> None:
    with released(JobLock(riding.path, "j")):
        code, _, err = orchestra("jobs", "cancel", "j")
        assert code == 2
        assert "is being run: stop that first (Ctrl-C), then cancel it" in err
        code, _, err = orchestra("jobs", "resume", "j", "--out", "o")
        assert (code, "being run by another process" in err) == (2, True)
    assert tally(riding) == (80, 0, 0)
    assert len(riding.batches.unfinished()) == 2
    assert server.log == []


def test_resume_needs_no_input(server: ScriptedProvider, hurry: Hurry, riding: JobStore, orchestra: Make) -> None:
    Path("in.jsonl").unlink()
    hurry.by += 5000.0
    code, _, err = orchestra("jobs", "resume", "j", "--out", "out.jsonl", "--deadline", "24")
    assert (code, "--deadline: 24 has no unit" in err) == (2, True)
    code, out, err = orchestra("jobs", "resume", "j", "--out", "out.jsonl", "--deadline", "2 days")
    assert code == 0, err
    (job,) = riding.jobs()
    assert job.deadline is not None
    assert job.deadline - time.time() == pytest.approx(2 * 86_400, abs=6000)
    assert "going on after 0 of 80 lines, 80 in 2 batches" in err
    assert "80 of 80 lines answered" in out
    assert [line["custom_id"] for line in read("out.jsonl")] == [f"id-{n}" for n in range(80)]
    assert not any(hit.method == "POST" for hit in server.log), "nothing is uploaded, created or asked again"
    code, _, err = orchestra("jobs", "resume", "j", "--out", "again.jsonl")
    assert (code, "answered already" in err) == (0, True)
    assert Path("again.jsonl").read_bytes() == Path("out.jsonl").read_bytes()


def test_an_interrupted_resume_says_how_to_go_on(server: ScriptedProvider, riding: JobStore) -> None:
    process = start("jobs", "resume", "j", "--out", "out.jsonl")
    wait_for(lambda: any(hit.path.startswith("/v1/batches/") for hit in server.log))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=50)
    assert process.returncode == 130
    assert "`orchestra jobs resume j` goes on with job 'j'" in err
    assert "2 batches go on at the provider meanwhile" in err


@pytest.mark.parametrize(
    ("kind", "told"), [("submitted", "was not read to its end"), ("awaited", "run that program again")]
)
def test_what_cannot_be_resumed(server: ScriptedProvider, orchestra: Make, kind: Any, told: str) -> None:
    with closing(JobStore(".orchestra/jobs.db")) as store:
        store.create("j", created=1.0, model=None, deadline=None, source=None, kind=kind)
    code, _, err = orchestra("jobs", "resume", "j", "--out", "out.jsonl")
    assert (code, told in err) == (2, True), err
    assert orchestra("jobs", "resume", "nobody", "--out", "out.jsonl")[0] == 2
    assert not Path("out.jsonl").exists()


def test_a_job_whose_input_was_not_read_can_be_cancelled(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    with closing(JobStore(".orchestra/jobs.db")) as store:
        job = store.create("j", created=1.0, model=None, deadline=None, source=None)
        store.add(job.id, [Line(1, "a", "/v1/chat/completions", b"{}", b"d")])
        code, out, _ = orchestra("jobs", "cancel", "j")
        assert (code, out) == (0, "job j: cancelled, with 1 line without an answer\n")
        assert (tally(store), (store.find("j") or job).state) == ((1, 0, 1), "ended")


def test_awaited_jobs_are_listed_shown_and_forgotten(server: ScriptedProvider, orchestra: Make) -> None:
    with closing(JobStore(".orchestra/jobs.db")) as store:
        job = store.create("script", created=1.0, model=None, deadline=None, source=None, kind="awaited")
        numbers = [store.awaited.await_line(job.id, bytes([n]), "/v1/x", b"{}").number for n in range(3)]
        store.finish(job.id, [End(numbers[0], route="acme/m", via="batch", usd=0.25)])
        assert orchestra("jobs", "list")[1].splitlines()[1].split()[:5] == [
            "script",
            "awaited",
            "interrupted",
            "3",
            "1",
        ]
        code, out, _ = orchestra("jobs", "show", "script")
        assert code == 0
        assert "calls that a program awaits" in out
        assert "acme/m by batch  1 line  0 tokens in, 0 out  $0.25" in out
        code, out, _ = orchestra("jobs", "cancel", "script")
        assert (code, out) == (0, "job script: cancelled, with 2 lines without an answer\n")
        assert tally(store) == (1, 1, 0)
        again = store.awaited.await_line(job.id, bytes([1]), "/v1/x", b"{}", 1)
        assert again.result is None, "who asks again is answered"
        assert again.number > max(numbers)


def test_delete_forgets_a_job_that_has_ended_and_its_files_at_the_provider(
    server: ScriptedProvider, hurry: Hurry, riding: JobStore, orchestra: Make, tmp_path: Path
) -> None:
    code, _, err = orchestra("jobs", "delete", "j")
    assert (code, "open batches: `orchestra jobs cancel j`" in err) == (2, True), err
    hurry.by += 1000.0
    assert orchestra("jobs", "cancel", "j")[0] == 0
    with released(JobLock(riding.path, "j")):
        assert "stop that first (Ctrl-C), then delete it" in orchestra("jobs", "delete", "j")[2]
    settings = Path("orchestra.toml").read_text()
    Path("orchestra.toml").write_text(settings.replace("sk-hidden", "sk-other"))
    server.log.clear()
    other = riding.create("other", created=1.0, model=None, deadline=None, source=None)
    riding.add(other.id, [Line(1, "c", "/v1/chat/completions", b'{"secret": "' + b"x" * 500_000 + b'"}', b"d")])
    riding.finish(other.id, [End(1, status_code=200, response=b"{}")])
    code, _, err = orchestra("jobs", "delete", "other")
    assert (code, "has not ended" in err) == (2, True), err
    riding.seal(other.id)

    def is_kept() -> bool:
        return any(b"x" * 1000 in file.read_bytes() for file in riding.path.parent.glob("jobs.db*"))

    assert is_kept()
    code, out, err = orchestra("jobs", "delete", "other")
    assert (code, out) == (0, "job other: deleted, with 1 line\n"), err
    assert not is_kept()
    assert sum(file.stat().st_size for file in riding.path.parent.glob("jobs.db*")) < 500_000
    assert not server.log, "it was in no batch"

    Path("orchestra.toml").write_text(settings)
    code, out, err = orchestra("jobs", "delete", "j")
    assert (code, out) == (0, "job j: deleted, with 80 lines and 4 files at providers\n"), err
    deleted = [hit.path for hit in server.log if hit.method == "DELETE"]
    assert len(set(deleted)) == 4, "of each of two batches what it was made of, and its results"
    assert riding.jobs() == []
    assert orchestra("jobs", "delete", "j")[0] == 2


def test_delete_wants_the_whole_name_and_says_which_files_stay(
    server: ScriptedProvider, hurry: Hurry, riding: JobStore, orchestra: Make
) -> None:
    assert orchestra("jobs", "cancel", "j", "--now")[0] == 0
    settings = Path("orchestra.toml")
    settings.write_text(settings.read_text().replace("sk-hidden", "sk-other"))
    server.log.clear()
    code, out, err = orchestra("jobs", "delete", "j")
    assert code == 0, err
    assert out.count("it was made with another key of [providers.acme]") == 2
    assert out.endswith("job j: deleted, with 80 lines\n")
    assert not server.log
    riding.create("nightly", created=1.0, model=None, deadline=None, source=None)
    code, _, err = orchestra("jobs", "delete", "night")
    assert (code, "`orchestra jobs delete nightly`" in err) == (2, True), err


def test_resume_starts_the_engine_before_the_job_and_says_so(
    server: ScriptedProvider, orchestra: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: Orchestra, name: str) -> None:
        raise LocalEngineError(f"no room for {name}")

    monkeypatch.setattr(Orchestra, "engine", fails)
    text = '[local.tiny]\nweights = "tiny.gguf"\n[models.here]\nroutes = ["local/tiny"]\n'
    Path("orchestra.toml").write_text(Path("orchestra.toml").read_text() + text)
    with closing(JobStore(tmp_path / ".orchestra" / "jobs.db")) as store:
        job = store.create("j", created=1.0, model=None, deadline=None, source=None)
        bodies = (b'{"model": "here"}', b'{"model": "fast"}')
        path = "/v1/chat/completions"
        store.add(job.id, [Line(number, f"c{number}", path, body, b"d") for number, body in enumerate(bodies, 1)])
        store.seal(job.id)
        assert store.models(job.id) == ["fast", "here"]
        code, _, err = orchestra("jobs", "resume", "j", "--out", "out.jsonl")
        assert (code, err.splitlines()[0]) == (2, "starting the engine of local/tiny")
        assert "no room for tiny" in err
        assert not server.log, "nothing was sent"
        store.finish(job.id, [End(1, status_code=200, response=b"{}")])
        assert store.models(job.id) == ["fast"], "what has an end needs no engine"
