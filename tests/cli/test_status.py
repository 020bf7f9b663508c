"""What `orchestra status` says, of literal reports and of real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestra import Orchestra
from orchestra.cli.main import app
from orchestra.cli.status_view import describe
from orchestra.observe import status_server
from orchestra.observe.status_client import look_around
from orchestra.testing import ScriptedProvider


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCHESTRA_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    # a busy machine may take its time
    monkeypatch.setitem(look_around.__kwdefaults__, "timeout", 50.0)
    monkeypatch.setattr(status_server, "PATIENCE", 50.0)


def status(*arguments):
    return CliRunner().invoke(app, ["status", *arguments])


def dimension(limit, **more):
    numbers = {"capacity": limit, "used": 0.0, "reserved": 0.0, "available": limit, "interactive_reserve": 0.0}
    return {"source": "configured", "limit": limit, **numbers, **more}


def pool(**more):
    return {
        "provider": "openai",
        "key": "0123456789ab",
        "models": ["gpt-*"],
        "dimensions": {
            "tokens": dimension(90_000.0, window=60.0, capacity=15_000.0, used=12_000.0, available=3_000.0)
        },
        "waiting": {"interactive": 0, "bulk": 1988},
        "in_use": {"interactive": 1, "bulk": 3},
        "granted": {"interactive": 120, "bulk": 388},
        "spent": {"requests": 508.0, "tokens": 0.0},
        "head": None,
        "paused": None,
        **more,
    }


def report(*pools, accounts=(), **snapshot):
    whole = {"pools": list(pools), "routes": {}, "local": {}, "jobs": {}, **snapshot}
    process = {"pid": 4242, "instance": 1, "program": "serve.py", "uptime": 200.0, "config": "/srv/orchestra.toml"}
    return {"processes": [{**process, "snapshot": whole}], "accounts": list(accounts)}


def told(*pools, width=100, **more):
    return "\n".join(text for text, _ in describe(report(*pools, **more), width=width))


def head(traffic="bulk", job="nightly", waits_for="tokens", seconds=3.2):
    return {"traffic": traffic, "job": job, "waits_for": waits_for, "seconds": seconds}


# A report in words


def test_a_process_and_its_account():
    lines = told(pool()).splitlines()
    assert lines[0] == "pid 4242  serve.py  up 3m20s  /srv/orchestra.toml"
    assert lines[2] == "  openai  gpt-*  key 0123456789ab"
    assert lines[4].split() == ["tokens", "90,000/min", "15,000", "12,000", "0", "3,000", "0", "set"]
    assert lines[6].split() == ["interactive", "0", "1", "120"]
    assert lines[7].split() == ["bulk", "1,988", "3", "388"]
    assert lines[8] == "    spent so far: 508 requests"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"head": head()}, "the next bulk call (job nightly) waits for tokens, about 3.2s"),
        ({"head": head(job=None, seconds=0.25)}, "the next bulk call waits for tokens, about 250ms"),
        (
            {"head": head("interactive", None)},
            "the next interactive call waits for tokens, about 3.2s; 1,988 bulk behind it",
        ),
        (
            {"head": head(waits_for="concurrency", seconds=None)},
            "the next bulk call (job nightly) waits for concurrency, until a call under way ends",
        ),
        (
            {"head": head(waits_for="input_tokens (learned)")},
            "the next bulk call (job nightly) waits for input tokens (learned), about 3.2s",
        ),
        (
            {"head": head(seconds=None), "shared": {"processes": 2, "slice": {}, "trouble": None}},
            "waits for tokens, which the shared budget gives when there is some",
        ),
        (
            {
                "head": head(waits_for="Retry-After", seconds=12.0),
                "paused": {"reason": "Retry-After", "seconds": 12.0},
            },
            "the next bulk call (job nightly) waits for the pause to end, about 12.0s",
        ),
        ({"paused": {"reason": "Retry-After", "seconds": 12.0}}, "paused (Retry-After), for 12.0s more"),
        ({"paused": {"reason": "insufficient_quota", "seconds": None}}, "paused (insufficient_quota)"),
    ],
)
def test_why_the_next_call_waits(changes, sentence):
    assert sentence in told(pool(**changes))


def test_any_dimension_is_told():
    dimensions = {
        "usd_per_day": dimension(20.0, window=86400.0, used=3.456, available=16.544),
        "requests_per_day": dimension(1e4, window=86400.0),
        "tokens": dimension(500.0, window=15.0),
        "concurrency": dimension(64.0, used=3.0),
        "send rate (learned)": dimension(120.0, window=60.0, source="learned"),
        "something_new": dimension(7.0),
        "unlimited": dimension(None, capacity=None),
    }
    text = told(pool(dimensions=dimensions))
    for row in (
        "usd $20.00/day $20.00 $3.46 $0.00 $16.54 $0.00 set",
        "requests 10,000/day 10,000",
        "tokens 500/15.0s",
        "concurrency 64 64 3",
        "send rate 120/min 120 0 0 120 0 learned",
        "something new 7 7",
    ):
        assert any(" ".join(line.split()).startswith(row) for line in text.splitlines()), row
    assert "unlimited" not in text


def test_the_tokens_of_open_batches_are_an_account_of_their_own():
    assert "openai  gpt-*  key 0123456789ab  batch" in told(pool(kind="batch"))
    assert "key 0123456789ab\n" in told(pool(kind="online"))


def test_an_account_without_limits_says_so():
    assert "no limit is known" in told(pool(dimensions={"concurrency": dimension(None)}))


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_it_fits_the_terminal(width):
    dimensions = {
        name: dimension(90_000.0, window=60.0, used=1234.0) for name in ("requests", "tokens", "output_tokens")
    }
    for text, _ in describe(report(pool(dimensions=dimensions)), width=width):
        if not text.startswith("pid"):
            assert len(text) <= max(width, 52)
    assert "bulk leaves" in told(pool(), width=width)


def route(state: str, **told: Any) -> dict[str, Any]:
    return {"state": state, "next_try_in": None, "fault": None, "paused_for": None, **told}


def test_routes_engines_and_jobs():
    text = told(
        routes={
            "openai/gpt-5": route("open", next_try_in=4.0, fault="openai/gpt-5 answered 503"),
            "groq/llama": route("closed", paused_for=50.0),
            "local/small": route("closed"),
            "x/y": route("something new"),
            "an/earlier": "closed",
        },
        local={
            "small": {
                "state": "running",
                "running": {"interactive": 2, "bulk": 14},
                "waiting": {"interactive": 0, "bulk": 30},
                "blocks": {"total": 512, "free": 100},
                "device": "cuda:0",
                "slots": 256,
                "step_tokens": 4096,
                "ttft": {
                    "interactive": {"p50": 0.08, "p95": 0.21, "count": 40},
                    "bulk": {"p50": None, "p95": None, "count": 0},
                },
                "per_token": {"interactive": {"p50": 0.045, "p95": 0.05, "count": 400}},
                "cache_hit_rate": {"interactive": 0.434, "bulk": None},
            },
            "other": {"state": "unused"},
        },
        jobs={
            "nightly": {
                "total": 1000,
                "done": 310,
                "failed": 2,
                "input_tokens": 1,
                "output_tokens": 1,
                "whole": True,
                "rate": 4.1,
                "seconds_left": 168.0,
                "waiting": None,
                "of a later version": 1,
            }
        },
    )
    assert "no call to a provider so far" in text
    assert re.search(r"openai/gpt-5 +open: it kept failing", text)
    assert "next try in 4.0s (openai/gpt-5 answered 503)" in text
    assert "healthy; its account is spent, and is asked again in 50.0s" in text
    assert re.search(r"local/small +healthy\n", text)
    assert re.search(r"an/earlier +healthy", text)
    assert "something new" in text
    assert "running; computing 2 interactive and 14 bulk; waiting 0 interactive and 30 bulk; 100 of 512" in text
    assert "cache blocks free; on cuda:0: up to 256 at once, 4,096 tokens a step\n" in text
    assert (
        "interactive: first token after 80ms (95 % within 210ms); the next ones every 45ms (95 % within 50ms); "
        "43% of prompts cached\n"
    ) in text
    assert "bulk: " not in text
    assert "local/other  not started" in text
    assert "nightly  312 of 1000 lines, 2 failed, 4.1 lines/s, about 2m48s left" in text


def test_what_could_steer_a_terminal_is_left_out():
    text = told(
        pool(head=head(job="\x1b[2Jnight\nly"), models=["gpt\x07"]),
        routes={"a\x1b]0;x": route("open", fault="\x1b[2J")},
    )
    assert all(sign.isprintable() for sign in text.replace("\n", ""))
    assert "(job ?[2Jnight?ly)" in text


def test_of_very_many_accounts_the_busy_ones_are_told():
    idle = pool(waiting={"bulk": 0}, in_use={"bulk": 0}, key="idle")
    text = told(*[idle] * 30, pool(key="busy"))
    assert "key busy" in text
    assert "... and 11 accounts more" in text


def test_a_process_that_does_not_answer_is_told():
    found = {"processes": [{"pid": 7, "instance": 2, "fault": "no answer within 2 s"}], "accounts": []}
    assert [text for text, _ in describe(found)] == ["pid 7, instance 2", "  no answer within 2 s"]


@pytest.mark.parametrize(
    "nonsense",
    [
        {"pid": "\x1b[31m", "snapshot": {}},
        {"pid": 7, "uptime": "long", "snapshot": {}},
        {"pid": 7, "snapshot": {"pools": 5}},
        {"pid": 7, "snapshot": {"routes": [1]}},
        {"pid": 7, "snapshot": {"jobs": {"j": None}}},
        {"pid": 7},
    ],
)
def test_one_that_talks_nonsense_hides_no_other(nonsense):
    found = {"processes": [nonsense, *report(pool())["processes"]], "accounts": []}
    text = "\n".join(text for text, _ in describe(found))
    assert "it tells nothing that we understand" in text
    assert "pid 4242  serve.py" in text
    assert "\x1b" not in text


def test_a_shared_account_is_told():
    account = {
        "file": "/srv/budget.db",
        "provider": "openai",
        "key": "0123456789ab",
        "models": ["gpt-*"],
        "processes": 1,
        "dimensions": {
            "requests": {"limit": 600.0, "window": 60.0, "capacity": 600.0, "used": 20.0, "available": 580.0}
        },
        "holders": [
            {"pid": 77, "held": {"requests": 12.0, "tokens": 0.0, "concurrency": 1.0}, "wants": {"requests": 3.0}}
        ],
    }
    text = told(accounts=[account, {"file": "/srv/other.db", "fault": "damaged"}])
    assert "shared budget /srv/budget.db" in text
    assert "pid 77 holds 12 requests, 1 slot, and waits for 3 requests more" in text
    assert "shared budget /srv/other.db\n  damaged" in text


# The command


def test_nothing_is_running():
    done = status()
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "async with Orchestra" in done.stderr
    assert os.environ["ORCHESTRA_RUNTIME_DIR"] in done.stderr
    done = status("--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {"processes": [], "accounts": []}


def test_a_folder_that_will_not_do_is_told(tmp_path):
    (tmp_path / "orchestra").mkdir(mode=0o755)
    assert "orchestra is open to other users; `chmod 700` closes it" in status().stderr


@pytest.mark.parametrize("columns", ["0", "1", "1000"])
def test_whatever_width_a_terminal_tells_all_is_said(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("orchestra.cli.status.look", lambda pid, file: report(pool()))
    assert "pid 4242  serve.py" in status().stdout


@pytest.mark.parametrize("arguments", [("--pid", "x"), ("--pid", "0"), ("--watch", "0"), ("--nonsense",)])
def test_bad_usage(arguments):
    assert status(*arguments).exit_code == 2


def test_settings_that_cannot_be_read_matter_only_where_they_are_named(tmp_path):
    (tmp_path / "orchestra.toml").write_text("[bugdet]\n")
    done = status()
    assert done.exit_code == 1
    assert "left aside: orchestra.toml: unknown key" in done.stderr
    assert type(status("--config", "orchestra.toml").exception).__name__ == "ConfigError"


def settings(provider, **more):
    return {
        "providers": {
            "cloud": {
                "kind": "openai-compatible",
                "base_url": provider.base_url,
                "api_key": "sk-secret",
                "limits": [{"requests_per_minute": 60.0}],
            }
        },
        "models": {"fast": {"routes": ["cloud/big"]}},
        **more,
    }


async def test_an_orchestra_is_seen_from_its_opening_to_its_end():
    async with ScriptedProvider() as provider:
        async with Orchestra.from_config(settings(provider)) as orc:
            done = status()
            assert done.exit_code == 0
            assert f"pid {os.getpid()}" in done.stdout
            assert "no call to a provider so far" in done.stdout
            await orc.chat("fast", [{"role": "user", "content": "a secret of mine"}])
            done, exact = status("--pid", str(os.getpid())), status("--json").stdout
            assert "requests 60/min 60 " in " ".join(done.stdout.split())
            assert "cloud/big  healthy" in done.stdout
            (process,) = json.loads(exact)["processes"]
            assert process["snapshot"]["pools"][0]["granted"] == {"interactive": 1, "bulk": 0}
            for text in (done.stdout, exact):
                assert "secret" not in text
                assert "http" not in text
            assert status("--pid", "1").exit_code == 1
        assert status().exit_code == 1
        await orc.chat("fast", [{"role": "user", "content": "again"}])
        assert status().exit_code == 0, "what is used anew is seen anew"
        await orc.aclose()
        assert status().exit_code == 1


async def test_an_orchestra_that_nobody_opened_is_seen_from_its_first_call():
    async with ScriptedProvider() as provider:
        orc = Orchestra.from_config(settings(provider))
        assert status().exit_code == 1
        async with orc.http_client() as client:
            body = {"model": "fast", "messages": [{"role": "user", "content": "Hello"}]}
            answer = await client.post("https://api.example.com/v1/chat/completions", json=body)
        assert answer.status_code == 200
        assert status().exit_code == 0
        await orc.aclose()


async def test_the_settings_can_forbid_it():
    async with Orchestra.from_config({"observe": {"status": False}}):
        assert status().exit_code == 1


async def test_the_file_of_the_settings_is_told(tmp_path):
    (tmp_path / "orchestra.toml").write_text("")
    async with Orchestra.from_file("orchestra.toml"):
        assert str(tmp_path / "orchestra.toml") in status().stdout


async def test_a_shared_budget_is_told_even_where_nothing_runs(tmp_path):
    shared = {"budget": {"backend": f"sqlite:{tmp_path / 'budget.db'}"}}
    (tmp_path / "orchestra.toml").write_text(f'[budget]\nbackend = "{shared["budget"]["backend"]}"\n')
    assert status().exit_code == 1
    async with ScriptedProvider() as provider, Orchestra.from_config(settings(provider, **shared)) as orc:
        await orc.chat("fast", [{"role": "user", "content": "Hello"}])
        done = status()
        assert "shared: 1 process holds a slice; this one's: " in done.stdout
        assert f"pid {os.getpid()} holds" in done.stdout
    done = status("--config", "orchestra.toml")
    assert done.exit_code == 0
    assert "no process holds any of it" in done.stdout
    assert "requests 60/min 60 " in " ".join(done.stdout.split())
    (tmp_path / "budget.db").write_text("damaged " * 100)
    assert "cannot be read" in status().stdout


BLOCKED = """
import asyncio, sys, time
from orchestra import Orchestra, bulk
async def main():
    async with Orchestra.from_config({
        "providers": {"cloud": {"kind": "openai-compatible", "base_url": sys.argv[1], "api_key": "sk-secret",
            "limits": [{"requests_per_minute": 2.0}]}},
        "models": {"fast": {"routes": ["cloud/big"]}},
    }) as orc:
        async def one():
            with bulk(job="nightly"):
                await orc.chat("fast", [{"role": "user", "content": "Hello"}])
        waiting = [asyncio.create_task(one()) for _ in range(5)]
        await asyncio.wait(waiting, return_when="FIRST_COMPLETED")
        print("blocked", flush=True)
        time.sleep(600)
asyncio.run(main())
"""


@contextmanager
def blocked(provider: ScriptedProvider):
    """A process that waits for its budget, and whose loop stands still."""
    command = [sys.executable, "-c", BLOCKED, provider.base_url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_processes_with_blocked_loops_are_seen_and_killed_ones_are_cleared_away(tmp_path):
    from anyio import to_thread

    async with ScriptedProvider() as provider:
        with blocked(provider) as one, blocked(provider) as other:
            for process in (one, other):
                assert await to_thread.run_sync(process.stdout.readline) == "blocked\n"
            done = status()
            assert f"pid {one.pid}" in done.stdout
            assert f"pid {other.pid}" in done.stdout
            assert done.stdout.count("the next bulk call (job nightly) waits for requests, about ") == 2
            one.kill()
            one.wait()
            left = tmp_path / "orchestra" / f"{one.pid}-1.sock"
            os.utime(left, (time.time() - 60, time.time() - 60))
            assert f"pid {one.pid}" not in status().stdout
            assert not left.exists()
            assert f"pid {other.pid}" in status().stdout


FORKED = """
import asyncio, os
from orchestra import Orchestra
from orchestra.observe.status_client import look_around
orc = Orchestra()
asyncio.run(orc.__aenter__())
child = os.fork()
if child:
    os.waitpid(child, 0)
    assert [one.pid for one in look_around(timeout=50)] == [os.getpid()]
else:
    assert [one.pid for one in look_around(timeout=50)] == [os.getppid()], "it has not used its own yet"
    asyncio.run(orc.__aenter__())
    assert {one.pid for one in look_around(timeout=50)} == {os.getpid(), os.getppid()}
    asyncio.run(orc.aclose())
    assert [one.pid for one in look_around(timeout=50)] == [os.getppid()]
    print("fine")
"""


def test_each_worker_of_a_forking_server_is_seen_for_itself():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_it_is_watched_until_interrupted(monkeypatch):
    times = []

    def sleep(seconds):
        times.append(seconds)
        if len(times) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    done = status("--watch", "0.5", "--json")
    assert done.exit_code == 0
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"processes": [], "accounts": []}] * 3
    assert times == [0.5] * 3
    times.clear()
    assert status("--watch", "2").stdout.count("nothing is running") == 3


def test_a_pipe_gets_plain_text(tmp_path):
    code = "from orchestra.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "status"], capture_output=True, cwd=tmp_path)
    assert done.returncode == 1
    assert b"\x1b" not in done.stdout + done.stderr
    assert Path(tmp_path / "orchestra").exists() is False, "looking makes nothing"
