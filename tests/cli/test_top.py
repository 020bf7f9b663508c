"""`orchestra top`: one screen at 80 columns, of literal reports and of a real program."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from orchestra import Orchestra
from orchestra.cli.main import app
from orchestra.cli.top_view import screen, sparkline
from orchestra.observe import status_server
from orchestra.observe.history import History, look_at
from orchestra.observe.status_client import look_around
from orchestra.testing import ScriptedProvider

BOTH = ("interactive", "bulk")


def spread(p50, p95):
    return {"p50": p50, "p95": p95, "count": 9}


def engine(**more):
    return {
        "state": "running",
        "slots": 16,
        "running": {"interactive": 1, "bulk": 4},
        "waiting": {"interactive": 0, "bulk": 30},
        "blocks": {"total": 1456, "free": 1000},
        "steps": 100,
        "prefill_tokens": 900,
        "output_tokens": 500,
        "displacements": 3,
        "evictions": 0,
        "occupancy": 0.3125,
        "last_step_seconds": 0.05,
        "predicted_over_actual": 0.8,
        "ttft": {one: spread(0.12, 0.5) for one in BOTH},
        "per_token": {one: spread(0.05, 0.06) for one in BOTH},
        "cache_hit_rate": {"interactive": 0.33, "bulk": None},
        **more,
    }


def pool(**more):
    numbers = {"source": "set", "reserved": 0.0, "interactive_reserve": 0.0}
    return {
        "provider": "openai",
        "key": "0123456789ab",
        "models": ["gpt-*"],
        "kind": "online",
        "dimensions": {
            "tokens": {**numbers, "limit": 9e4, "window": 60.0, "capacity": 15e3, "used": 12e3, "available": 3e3},
            "usd_per_day": {**numbers, "limit": 20.0, "capacity": 20.0, "used": 5.0, "available": 15.0},
        },
        "waiting": {"interactive": 0, "bulk": 1988},
        "in_use": {"interactive": 1, "bulk": 3},
        "granted": {"interactive": 120, "bulk": 388},
        "spent": {},
        "head": {"traffic": "bulk", "job": "nightly", "waits_for": "tokens", "seconds": 3.2},
        "paused": None,
        **more,
    }


def report(*pools, **snapshot):
    whole = {"pools": list(pools), "routes": {}, "local": {}, "jobs": {}, "batches": [], **snapshot}
    return {"processes": [{"pid": 42, "instance": 1, "program": "serve.py", "uptime": 200.0, "snapshot": whole}]}


def shown(told, history=None, **size):
    return [text for text, _ in screen(told, history or History(), title="top", **size)]


def test_a_screen_of_80_columns():
    history = History()
    for second in range(60):
        told = report(
            pool(granted={"interactive": 120 + 2 * second, "bulk": 388 + 5 * second}),
            local={"own": engine(output_tokens=500 + 40 * second), "spare": {"state": "unused"}},
            routes={
                "openai/gpt-5": {"state": "closed"},
                "groq/llama": {"state": "open", "next_try_in": 12.0, "fault": "503 " + "overloaded " * 12},
            },
        )
        history.add(float(second), look_at(told))
    lines = shown(told, history)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert lines[1] == "pid 42  serve.py  up 3m20s"
    assert lines[2] == "  openai  gpt-*  key 0123456789ab"
    assert re.search(r"waiting +interactive +0 +▁+$", text, re.M)
    assert re.search(r"^ +bulk +1,988 +█+$", text, re.M)
    assert re.search(r"let go /s +interactive +2 +█+$", text, re.M)
    assert re.search(r"^ +bulk +5 +█+$", text, re.M)
    assert re.search(r"tokens +████░{16}  3,000 of 15,000 free", text)
    assert re.search(r"usd per day +█{15}░{5}  \$15.00 of \$20.00 free", text)
    assert "    the next bulk call (job nightly) waits for tokens, about 3.2s" in lines
    assert re.search(r"output /s +tokens +40 +█+$", text, re.M)
    told_of_engine = " ".join(text[text.index("31% of 16 slots") :].split())
    assert told_of_engine.startswith(
        "31% of 16 slots filled; 1,000 of 1,456 cache blocks free; 0 steps/s; the last took 50ms; "
        "steps take 125% of the time foreseen; 3 displacements"
    )
    assert "interactive: first token after 120ms (95 % within 500ms)" in told_of_engine
    assert "local/spare  not started" in text
    routes = text.index("  routes")
    assert text.index("groq/llama", routes) < text.index("openai/gpt-5", routes), "what fails comes first"


def test_a_low_window_and_many_accounts():
    pools = [pool(models=[f"m{number}"], head=None) for number in range(30)]
    assert "  ... and 22 accounts more, idle or later in line" in shown(report(*pools))
    lines = shown(report(*pools), height=20)
    assert len(lines) == 20
    assert re.fullmatch(r"\.\.\. \d+ lines more: --pid N shows one program", lines[-1])


def test_what_cannot_be_understood_hides_nothing():
    told = report(pool())
    told["processes"] = [
        {"pid": 7, "instance": 1, "snapshot": {"pools": [{"provider": "x"}]}},
        {"pid": 8, "instance": 2, "fault": "no answer \x1b[2J within 2 s"},
        *told["processes"],
    ]
    text = "\n".join(shown(told))
    assert "pid 7\n  it tells nothing that we understand" in text
    assert "pid 8, instance 2\n  no answer ?[2J within 2 s" in text
    assert "pid 42  serve.py" in text
    assert "\x1b" not in text
    assert "nothing is running" in shown({"processes": []})[1]


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e9)), max_size=60))
def test_a_sparkline_rises_with_its_values(values):
    line = sparkline(values)
    assert len(line) == len(values)
    there = [(value, sign) for value, sign in zip(values, line, strict=True) if value is not None]
    assert all((sign == " ") == (value is None) for value, sign in zip(values, line, strict=True))
    assert all(low[1] <= high[1] for low, high in zip(sorted(there), sorted(there)[1:], strict=False))
    assert all((sign == "▁") == (value == 0) for value, sign in there)


async def test_a_running_program_is_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("ORCHESTRA_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setitem(look_around.__kwdefaults__, "timeout", 50.0)  # a busy machine may take its time
    monkeypatch.setattr(status_server, "PATIENCE", 50.0)
    nobody = CliRunner().invoke(app, ["top", "--looks", "1"])
    assert "nothing is running that can be seen" in nobody.output
    assert nobody.exit_code == 1
    absent = CliRunner().invoke(app, ["top", "--pid", "1"])
    assert (absent.exit_code, absent.output) == (1, "there is no process 1 to be seen\n")
    async with ScriptedProvider() as provider:
        one = {"kind": "openai-compatible", "base_url": provider.base_url, "limits": [{"requests_per_minute": 60}]}
        settings = {
            "providers": {"main": {**one, "api_key": "a-key"}},
            "models": {"fast": {"routes": ["main/m1"]}},
        }
        async with Orchestra.from_config(settings) as orc:
            await orc.chat("fast", [{"role": "user", "content": "hello"}])
            done = CliRunner().invoke(app, ["top", "--pid", str(os.getpid()), "--every", "0.1", "--looks", "2"])
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("orchestra top  ")
    assert re.search(r"under way +interactive +0 +▁+$", done.output, re.M)
    assert re.search(r"requests +█+░*  [\d.]+ of 60 free", done.output)
    assert "main/m1  healthy" in done.output


@pytest.mark.parametrize("arguments", [["--every", "0"], ["--looks", "0"], ["--pid", "x"]])
def test_bad_usage(arguments):
    assert CliRunner().invoke(app, ["top", *arguments]).exit_code == 2
