"""``orchestra run``, against a provider on the loopback interface."""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from run_lab import prompts, read

from orchestra.jobs import JobStore
from orchestra.testing import Reply, ScriptedProvider

Make = Callable[..., Any]


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
