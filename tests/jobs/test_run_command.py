"""``orchestra run`` and ``orchestra jobs``, against a provider on the loopback interface."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestra.cli.main import main
from orchestra.jobs import JobStore, is_locked
from orchestra.testing import Reply, ScriptedProvider

Make = Callable[..., Any]

COMMAND = [sys.executable, "-c", "from orchestra.cli.main import main; main()"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedProvider]:
    """A provider that serves the model ``fast`` of the orchestra.toml in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCHESTRA_DEBUG", "")
    with ScriptedProvider() as server:
        Path("orchestra.toml").write_text(
            f'[providers.fake]\nkind = "openai-compatible"\nbase_url = "{server.base_url}"\n'
            'api_key = "sk-hidden"\nlimits = [{max_concurrency = 8}]\n'
            '[models.fast]\nroutes = ["fake/m"]\n'
        )
        yield server


@pytest.fixture
def orchestra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Make:
    """Run the command line here. Returns exit code, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["orchestra", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return call


def read(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def prompts(server: ScriptedProvider) -> list[str]:
    return [hit.json["messages"][-1]["content"] for hit in server.log]


def test_answers_a_file(server: ScriptedProvider, orchestra: Make, batch_file: Make) -> None:
    batch_file(*range(40))
    code, out, err = orchestra("run", "in.jsonl", "--out", "out.jsonl")
    assert code == 0, err
    assert "40 of 40 lines answered, 0 failed" in out
    assert "results: out.jsonl" in out
    lines = read("out.jsonl")
    assert [line["custom_id"] for line in lines] == [f"id-{n}" for n in range(40)]
    assert len({line["id"] for line in lines}) == 40
    assert {line["response"]["status_code"] for line in lines} == {200}
    assert all(line["response"]["body"]["choices"][0]["message"]["content"] for line in lines)
    assert Counter(prompts(server)) == Counter(str(n) for n in range(40))
    assert {hit.json["model"] for hit in server.log} == {"m"}
    store = b"".join(file.read_bytes() for file in Path(".orchestra").iterdir())
    assert b"id-0" in store
    assert b"sk-hidden" not in store

    before = Path("out.jsonl").read_bytes()
    code, out, err = orchestra("run", "in.jsonl", "--out", "out.jsonl")
    assert code == 0
    assert "answered already" in err
    assert (len(server.log), Path("out.jsonl").read_bytes()) == (40, before)


def test_plain_lines_and_a_model_for_all(server: ScriptedProvider, orchestra: Make) -> None:
    Path("in.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n\n{"prompt": "b"}\n')
    code, _, err = orchestra("run", "in.jsonl", "--out", "out.jsonl", "--model", "fast")
    assert code == 0, err
    assert [line["custom_id"] for line in read("out.jsonl")] == ["line-1", "line-3"]
    assert sorted(hit.path for hit in server.log) == ["/v1/chat/completions", "/v1/completions"]


def test_failed_lines_are_told_with_their_reason(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    server.script.extend(
        [Reply.error(400, "bad_thing", kind="invalid_request_error", message="not like this")] * 2
    )
    batch_file(*range(5))
    code, out, _ = orchestra("run", "in.jsonl", "--out", "out.jsonl")
    assert code == 1
    assert "3 of 5 lines answered, 2 failed" in out
    assert "bad_thing (2)" in out
    failed = [line for line in read("out.jsonl") if line["response"]["status_code"] != 200]
    assert len(failed) == 2
    assert failed[0]["response"]["body"]["error"]["message"] == "not like this"


def test_stdin_is_read_to_its_end(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = batch_file("a", "b").read_bytes() + b"{broken\n"
    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        code, out, err = orchestra("run", "-", "--out", "out.jsonl")
        assert code == 1, err
        assert "2 of 3 lines answered, 1 failed" in out
    assert [line["custom_id"] for line in read("out.jsonl")] == ["id-a", "id-b", "line-3"]
    assert read("out.jsonl")[2]["error"]["code"] == "invalid_line"
    assert len(server.log) == 2


def test_dry_run_sends_nothing_and_leaves_nothing(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, request_of: Make, tmp_path: Path
) -> None:
    path = batch_file(*range(30))
    with path.open("a") as file:
        file.write(json.dumps(request_of("x" * 4000, max_tokens=50, n=2)) + "\n")
    before = sorted(os.listdir(tmp_path))
    code, out, _ = orchestra("run", "in.jsonl", "--out", "out.jsonl", "--dry-run")
    assert code == 0
    assert "in.jsonl: 31 lines, about 1," in out
    assert "at most 100 out and 30 lines that set no bound" in out
    assert "fast: 31 lines, by fake/m" in out
    assert "nothing was sent" in out
    assert (server.log, sorted(os.listdir(tmp_path))) == ([], before)


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({16: "{broken"}, ["in.jsonl, line 17", "not valid JSON", "each line must be one JSON object"]),
        ({16: 3}, ["in.jsonl, line 17", "custom_id 'id-3' is that of line 4 too", "unique"]),
        ({4: {"model": "fats"}}, ["in.jsonl, line 5", "'fats'", "fast"]),
        ({4: {"messages": []}}, ["in.jsonl, line 5", '"messages" must be a list of at least one message']),
        ({4: {"model": None}}, ["in.jsonl, line 5", "--model"]),
        ({4: {"stream": True}}, ["in.jsonl, line 5", '"stream" is not possible', "leave it out"]),
        ({2: b"\xff\xfe"}, ["in.jsonl, line 3", "UTF-8"]),
        ({2: "{", 9: 1, 12: "[]"}, ["3 lines cannot be used", "line 3:", "line 10:", "line 13:"]),
        (dict.fromkeys(range(15), "?"), ["15 lines cannot be used", "line 10:", "... and 5 more"]),
    ],
)
def test_bad_input_is_refused_whole(
    server: ScriptedProvider,
    orchestra: Make,
    batch_file: Make,
    change: dict[int, Any],
    told: list[str],
    dry: list[str],
) -> None:
    path = batch_file(*range(20))
    lines: list[Any] = path.read_bytes().splitlines()
    for place, new in change.items():
        if isinstance(new, dict):
            line = json.loads(lines[place])
            line["body"] |= new
            new = json.dumps(line)
        elif isinstance(new, int):
            new = lines[new]
        lines[place] = new.encode() if isinstance(new, str) else new
    path.write_bytes(b"\n".join(lines))
    code, out, err = orchestra("run", "in.jsonl", "--out", "out.jsonl", *dry)
    assert (code, out) == (2, "")
    for words in told:
        assert words in err
    assert (server.log, Path("out.jsonl").exists()) == ([], False)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.jsonl", "--out", "o"], "nowhere.jsonl: no such file; check the name"),
        ([".", "--out", "o"], "a folder"),
        (["empty.jsonl", "--out", "o"], "empty.jsonl: holds no lines; write one JSON object"),
        (["in.jsonl", "--out", "in.jsonl"], "would overwrite the input"),
        (["in.jsonl", "--out", "none/o"], "there is no folder"),
        (["in.jsonl", "--out", "."], "a folder"),
        (["in.jsonl"], "--out"),
        (["in.jsonl", "--out", "o", "--model", "fats"], "fast"),
        (["in.jsonl", "--out", "o", "--deadline", "soon"], "write it like 90s, 15m, 6h"),
        (["in.jsonl", "--out", "o", "--job", ""], "job name"),
        (["in.jsonl", "--out", "o", "--config", "none.toml"], "none.toml: no such file"),
        (["in.jsonl", "--out", "o", "--config", "typo.toml"], "did you mean 'models'"),
        (["in.jsonl", "--out", "o", "--config", "keyless.toml"], "ORCHESTRA_TEST_NO_SUCH_KEY is not set"),
        (["in.jsonl", "--out", "o", "--config", "badstore.toml"], "not a job store"),
        (["in.jsonl", "--out", "o", "--config", "badmodel.toml"], "cut.gguf"),
    ],
)
def test_bad_usage_is_refused(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, arguments: list[str], told: str
) -> None:
    batch_file(1)
    Path("empty.jsonl").write_text("\n \n")
    settings = Path("orchestra.toml").read_text()
    Path("typo.toml").write_text(settings.replace("[models.", "[model."))
    Path("keyless.toml").write_text(settings.replace("sk-hidden", "env:ORCHESTRA_TEST_NO_SUCH_KEY"))
    Path("badstore.toml").write_text(settings + '[bulk]\nstore = "empty.db"\n')
    Path("badmodel.toml").write_text('[models.fast]\nroutes = ["local/cut"]\n[local.cut]\nweights = "cut.gguf"\n')
    Path("cut.gguf").write_bytes(b"GGUF" + bytes(60))
    Path("empty.db").write_bytes(b"no database at all" * 100)
    code, out, err = orchestra("run", *arguments)
    assert code == 2
    assert told in err
    assert "Traceback" not in err
    assert (out, server.log, Path("o").exists()) == ("", [], False)
    code, out, _ = orchestra("jobs", "list")
    assert out == "no jobs yet\n"


def test_a_name_with_other_requests_is_bad_usage(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    batch_file(1, 2)
    assert orchestra("run", "in.jsonl", "--out", "o", "--job", "nightly")[0] == 0
    batch_file(1, 3)
    code, _, err = orchestra("run", "in.jsonl", "--out", "o", "--job", "nightly")
    assert code == 2
    assert "'nightly' exists already with other requests" in err
    assert "line 2" in err
    assert len(server.log) == 2


def test_a_stopped_job_says_why_and_goes_on(server: ScriptedProvider, orchestra: Make, batch_file: Make) -> None:
    server.default = Reply.error(401, "invalid_api_key", kind="invalid_request_error", message="wrong key")
    batch_file(*range(30))
    code, out, err = orchestra("run", "in.jsonl", "--out", "out.jsonl", "--job", "j")
    assert (code, out, Path("out.jsonl").exists()) == (1, "", False)
    assert "wrong key" in err
    assert "run the same command again" in err
    code, out, _ = orchestra("jobs", "show", "j")
    assert "stopped" in out
    assert "wrong key" in out
    assert "sk-hidden" not in err + out
    server.default = Reply()
    code, out, err = orchestra("run", "in.jsonl", "--out", "out.jsonl", "--job", "j")
    assert code == 0, err
    assert "30 of 30 lines answered" in out


def test_a_job_whose_price_nobody_knows_stops_and_goes_on_once_it_is_set(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    settings = Path("orchestra.toml")
    known = settings.read_text()
    settings.write_text(known.replace("max_concurrency = 8", "max_concurrency = 8, usd_per_day = 5.0"))
    file = batch_file(*range(5))
    code, _, err = orchestra("run", file, "--out", "out.jsonl")
    assert code == 1
    assert "[price_unknown]" in err
    assert "add [[providers.fake.prices]]" in err
    assert server.log == []
    with settings.open("a") as toml:
        toml.write("[[providers.fake.prices]]\ninput = 1.0\noutput = 1.0\n")
    assert orchestra("run", file, "--out", "out.jsonl")[0] == 0
    assert [line["error"] for line in read("out.jsonl")] == [None] * 5


def test_jobs_are_listed_and_shown(server: ScriptedProvider, orchestra: Make, batch_file: Make) -> None:
    assert orchestra("jobs", "list") == (0, "no jobs yet\n", "")
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


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.005)


def test_an_interrupt_leaves_a_resumable_job(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, tmp_path: Path
) -> None:
    server.service_time = 0.05
    batch_file(*range(200))
    process = start("run", "in.jsonl", "--out", "out.jsonl", "--job", "j")
    wait_for(lambda: len(server.log) > 20)
    assert is_locked(tmp_path / ".orchestra" / "jobs.db", "j")
    code, out, err = orchestra("jobs", "list")
    assert "running" in out
    code, _, err = orchestra("run", "in.jsonl", "--out", "out.jsonl", "--job", "j")
    assert code == 2
    assert "being run by another process" in err
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the same command goes on with job 'j'" in err
    assert "Traceback" not in err
    assert not Path("out.jsonl").exists()
    with closing(JobStore(tmp_path / ".orchestra" / "jobs.db")) as store:
        assert 0 < store.tally(1).ended < 200
    server.service_time = 0.0
    code, out, err = orchestra("run", "in.jsonl", "--out", "out.jsonl", "--job", "j")
    assert code == 0, err
    assert "going on" in err
    assert len(read("out.jsonl")) == 200


@pytest.mark.timeout(180)
def test_twenty_kills(server: ScriptedProvider, batch_file: Make, tmp_path: Path) -> None:
    """Killed at random instants, the same command answers every line once, and asks none again that had ended."""
    seed = random.randrange(1 << 32)
    rand = random.Random(seed)
    lines, kills = 400, 20
    server.service_time = 0.06
    batch_file(*range(lines))
    store_path = tmp_path / ".orchestra" / "jobs.db"
    command = ("run", "in.jsonl", "--out", "out.jsonl")
    ended: set[str] = set()
    asked_before: list[int] = []
    while_running = 0

    for _ in range(kills):
        process = start(*command)
        if rand.random() < 0.8:
            hits = len(server.log)
            wait_for(lambda hits=hits, process=process: len(server.log) > hits or process.poll() is not None)
            time.sleep(rand.uniform(0, 0.15))
        else:
            time.sleep(rand.uniform(0, 0.8))
        while_running += process.poll() is None
        process.kill()
        process.communicate()
        wait_for(lambda: server.in_flight == 0)
        again = ended.intersection(prompts(server)[asked_before[-1] if asked_before else 0 :])
        assert not again, f"seed {seed}: asked again though ended: {again}"
        if store_path.exists():
            with closing(JobStore(store_path)) as store:
                job = next(iter(store.jobs()), None)
                results = store.results(job.id, 0, max_lines=lines, max_bytes=1 << 30) if job else []
            assert ended <= {result.custom_id.removeprefix("id-") for result in results}, f"seed {seed}: lost"
            ended = {result.custom_id.removeprefix("id-") for result in results}
        asked_before.append(len(server.log))

    process = start(*command)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, f"seed {seed}: {err}"
    assert not ended.intersection(prompts(server)[asked_before[-1] :]), f"seed {seed}"
    answered = read("out.jsonl")
    assert [line["custom_id"] for line in answered] == [f"id-{n}" for n in range(lines)], f"seed {seed}"
    assert all(line["response"]["status_code"] == 200 for line in answered)
    asked = Counter(prompts(server))
    assert set(asked) == {str(n) for n in range(lines)}
    # only what was under way at a kill may be asked again: at most the concurrency limit each time
    assert sum(asked.values()) - lines <= 8 * kills
    assert while_running >= kills // 2, f"seed {seed}: too few kills hit a running command to mean anything"
    assert not list(tmp_path.glob("out.jsonl.*"))


def test_an_interrupt_ends_the_wait_for_a_pipe(server: ScriptedProvider) -> None:
    os.mkfifo("pipe")
    for source in ("-", "pipe"):
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [*COMMAND, "run", source, "--out", "out.jsonl"], stdin=reading, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        assert process.stderr.readline() == b"settings: orchestra.toml\n"  # the next it does is read
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        os.close(reading)
        os.close(writing)
        assert (process.returncode, err) == (130, b"interrupted before anything was sent\n")


def test_results_overwrite_neither_settings_nor_store(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    batch_file(1)
    settings = Path("orchestra.toml").read_text()
    for out, told in (
        ("orchestra.toml", "the settings"),
        (".orchestra/jobs.db", "the store"),
        ("-", "name a file"),
    ):
        code, _, err = orchestra("run", "in.jsonl", "--out", out)
        assert (code, told in err) == (2, True), err
    assert not server.log
    assert Path("orchestra.toml").read_text() == settings


@pytest.mark.parametrize("arguments", [("x" * 300, "--out", "o"), ("in.jsonl", "--out", "x" * 300)])
def test_names_that_no_file_can_have(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, arguments: tuple[str, ...]
) -> None:
    batch_file(1)
    code, _, err = orchestra("run", *arguments)
    assert (code, "File name too long" in err) == (2, True), err


def test_results_that_cannot_be_written_are_no_bad_input(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_file(1, 2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = orchestra("run", "in.jsonl", "--out", "out.jsonl")
    assert code == 1  # 2 would say that nothing was sent
    assert "No space left on device" in err
    assert len(server.log) == 2


def test_a_dry_run_checks_the_deadline_too(server: ScriptedProvider, orchestra: Make, batch_file: Make) -> None:
    batch_file(1)
    code, _, err = orchestra("run", "in.jsonl", "--out", "o", "--dry-run", "--deadline", "soon")
    assert (code, "--deadline" in err) == (2, True)


def test_jobs_of_a_store_that_cannot_be_opened(server: ScriptedProvider, orchestra: Make) -> None:
    Path(".orchestra/jobs.db").mkdir(parents=True)
    for command in (("list",), ("show", "x"), ("results", "x")):
        code, _, err = orchestra("jobs", *command)
        assert (code, "cannot be made" in err) == (2, True), err


def test_a_deadline_beyond_every_calendar(server: ScriptedProvider, orchestra: Make, batch_file: Make) -> None:
    batch_file(1)
    assert orchestra("run", "in.jsonl", "--out", "o", "--job", "j", "--deadline", "1e300")[0] == 0
    code, out, _ = orchestra("jobs", "show", "j")
    assert (code, "deadline" in out) == (0, True)


def test_no_room_for_a_copy_of_stdin(
    server: ScriptedProvider, orchestra: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x")))
    code, _, err = orchestra("run", "-", "--out", "o")
    assert (code, "TMPDIR" in err) == (2, True), err


@pytest.mark.parametrize("section", ["", '[local.small]\nweights = "none.gguf"\n'])
def test_a_bad_line_of_a_stream_fails_alone(
    server: ScriptedProvider, orchestra: Make, monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    """Whether an engine is configured, for which the input is looked through first, or not."""
    with Path("orchestra.toml").open("a") as settings:
        settings.write(section)
    stream = b'{"model": "fast", "prompt": "x"}\n{broken\n{"model": "fast", "prompt": "y"}\n'
    for arguments, expected in ((["--dry-run"], 0), ([], 1)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stream)))
        code, out, err = orchestra("run", "-", "--out", "o", *arguments)
        assert code == expected, err
        assert ("would fail: 1" in out) if arguments else ("2 of 3 lines answered, 1 failed" in out)
    assert len(server.log) == 2


def test_an_unknown_model_for_all_lines_is_told_once(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    batch_file(*range(20))
    for dry in ([], ["--dry-run"]):
        code, _, err = orchestra("run", "in.jsonl", "--out", "o", "--model", "fats", *dry)
        assert (code, err.count("fats")) == (2, 1), err
    assert not server.log


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_what_is_missing_is_told_before_an_engine_starts(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, dry: list[str]
) -> None:
    batch_file(1)
    Path("orchestra.toml").write_text(
        '[models.fast]\nroutes = ["local/none"]\n[local.none]\nweights = "none.gguf"\n'
    )
    code, _, err = orchestra("run", "in.jsonl", "--out", "o", *dry)
    assert (code, "none.gguf does not exist" in err, "starting" in err) == (2, True, False), err
    code, _, err = orchestra("run", "in.jsonl", "--out", "o", "--deadline", "6x", "--config", "nowhere.toml", *dry)
    assert (code, "--deadline" in err) == (2, True), err
    code, _, err = orchestra("run", "in.jsonl", "--out", "o", "--job", " x", *dry)
    assert (code, "job name" in err) == (2, True), err


def test_a_dry_run_says_that_prompt_lengths_are_checked_later(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    batch_file(1)
    Path("some.gguf").touch()
    Path("orchestra.toml").write_text(
        '[models.fast]\nroutes = ["local/some"]\n[local.some]\nweights = "some.gguf"\n'
    )
    code, out, err = orchestra("run", "in.jsonl", "--out", "o", "--dry-run")
    assert code == 0, err
    assert "lengths of prompts for local/some are checked when the run starts its engine" in out


def test_a_job_that_has_ended_starts_no_engine(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    batch_file(1)
    assert orchestra("run", "in.jsonl", "--out", "o")[0] == 0
    Path("some.gguf").write_bytes(b"GGUF" + bytes(60))  # which no engine starts with
    Path("orchestra.toml").write_text(
        '[models.fast]\nroutes = ["local/some"]\n[local.some]\nweights = "some.gguf"\n'
    )
    code, _, err = orchestra("run", "in.jsonl", "--out", "o")
    assert (code, "answered already" in err, "starting" in err) == (0, True, False), err


def test_a_job_that_waits_says_why_and_until_when(
    server: ScriptedProvider, orchestra: Make, batch_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestra.dispatch import Dispatcher
    from orchestra.errors import AllRoutesFailed, ConnectionFailed
    from orchestra.jobs import JobManager

    cause = ConnectionFailed("connection refused", sent=False)
    seen: list[str | None] = []

    async def send(*_: object) -> Any:
        with closing(JobStore(".orchestra/jobs.db")) as store:
            seen.append(store.jobs()[0].stopped)
        raise AllRoutesFailed("no route answered", attempts=[("acme/m-1", cause)] * 8)

    monkeypatch.setattr(Dispatcher, "send", send)
    defaults = dict(JobManager.__init__.__kwdefaults__, patience=1.5)
    monkeypatch.setattr(JobManager.__init__, "__kwdefaults__", defaults)
    batch_file(1, 2)
    code, _, err = orchestra("run", "in.jsonl", "--out", "o", "--job", "j")
    assert code == 1
    told = "waiting: acme/m-1: connection refused; next try in 1s; gives up after 1.5s of no answer at all"
    assert told in err
    assert "run the same command again to go on with it" in err
    assert seen[-1] == "acme/m-1: connection refused"
    assert "0 failed" not in err
    with closing(JobStore(".orchestra/jobs.db")) as store:
        assert store.tally(1).pending == 2


def test_an_interrupt_ends_the_start_of_an_engine() -> None:
    script = (
        "import time\nfrom orchestra.cli.run import _leaving_at_once\n"
        "with _leaving_at_once('interrupted'):\n print('loading', flush=True)\n time.sleep(30)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"loading\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=5)
    assert (process.returncode, err) == (130, b"interrupted\n")
