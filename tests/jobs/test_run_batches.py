"""``orchestra run`` with a deadline: what rides in batches, what is told of it, and what an interrupt leaves."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_lab import Hurry, read, settings_with_batches, start, wait_for

from orchestra.cli.job_words import held_by, stalled, within_limits
from orchestra.cli.run_display import RunDisplay, below_bar
from orchestra.jobs import JobStore, OpenBatch, OutletTally, Progress
from orchestra.testing import BatchScript, ScriptedProvider

Make = Callable[..., Any]
RUN = ("run", "in.jsonl", "--out", "out.jsonl", "--job", "j", "--deadline", "24h")


def use_batches(server: ScriptedProvider, **more: Any) -> None:
    Path("orchestra.toml").write_text(settings_with_batches(server, **more))


def creates(server: ScriptedProvider) -> int:
    return sum(hit.method == "POST" and hit.path == "/v1/batches" for hit in server.log)


def calls(server: ScriptedProvider) -> Counter[str]:
    return Counter(hit.json["messages"][-1]["content"] for hit in server.log if hit.path.endswith("/completions"))


def test_lines_ride_in_batches_and_the_report_says_so(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    use_batches(server)
    batch_file(*range(100))
    code, out, err = orchestra(*RUN)
    assert code == 0, err
    assert [line["custom_id"] for line in read("out.jsonl")] == [f"id-{n}" for n in range(100)]
    assert (creates(server), calls(server)) == (3, Counter())
    told = out.splitlines()
    assert told[0].startswith("100 of 100 lines answered, 0 failed")
    tokens = [line["response"]["body"]["usage"] for line in read("out.jsonl")]
    usd = sum(50 * used["prompt_tokens"] + 100 * used["completion_tokens"] for used in tokens) / 1e6
    assert told[1].split()[:6] == ["acme/m", "by", "batch", "100", "lines", f"{tokens[0]['prompt_tokens'] * 100}"]
    assert told[1].endswith(f"${usd:.2g}")
    assert f"cost: ${usd:.2g}" in told
    assert "100% of the answered lines had the lower price of work that can wait" in told

    before = len(server.log)
    code, out, err = orchestra(*RUN)
    assert (code, len(server.log)) == (0, before)
    assert "answered already" in err


def test_what_leaves_a_batch_is_told(server: ScriptedProvider, orchestra: Make, batch_file: Make) -> None:
    use_batches(server)
    server.batch_script.append(BatchScript(end="expired", answered=10))
    batch_file(*range(40))
    code, out, err = orchestra(*RUN)
    assert code == 0, err
    assert "30 lines left a batch unanswered, to be sent another way, or to fail" in out
    assert {line["response"]["status_code"] for line in read("out.jsonl")} == {200}
    assert sum(calls(server).values()) == 30
    assert "25% of the answered lines had the lower price" in out
    assert [line.split()[:4] for line in out.splitlines()[1:3]] == [
        ["acme/m", "by", "batch", "10"],
        ["acme/m", "30", "lines", "270"],
    ]


def test_without_a_price_the_setting_is_named(server: ScriptedProvider, orchestra: Make, batch_file: Make) -> None:
    use_batches(server, prices=False)
    batch_file(*range(5))
    code, out, _ = orchestra(*RUN)
    assert code == 0
    assert "price unknown" in out
    assert "cost: unknown; to know it, add [[providers.acme.prices]] for acme/m" in out
    assert "$" not in out


def test_an_interrupt_leaves_batches_that_the_same_command_takes_up(
    server: ScriptedProvider, hurry: Hurry, orchestra: Make, batch_file: Make, tmp_path: Path
) -> None:
    use_batches(server)
    server.batch_default = BatchScript(running=1000.0)
    batch_file(*range(80))
    process = start(*RUN)
    with closing(JobStore(tmp_path / ".orchestra" / "jobs.db")) as store:
        wait_for(lambda: [batch.state for batch in store.batches.unfinished()] == ["submitted"] * 2)
    code, out, _ = orchestra("jobs", "show", "j")
    assert code == 0
    assert "riding    80 in batches" in out
    assert "at the provider (in_progress), 40 on their way" in out
    code, out, _ = orchestra("jobs", "list")
    assert out.splitlines()[1].split()[:7] == ["j", "submitted", "running", "80", "0", "0", "80"]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=50)
    assert process.returncode == 130
    assert "the same command goes on with job 'j'" in err
    assert "2 batches go on at the provider meanwhile, and the same command takes them up" in err
    assert "`orchestra jobs cancel j` ends them" in err
    assert "Traceback" not in err

    created = creates(server)
    hurry.by = 2000.0
    code, out, err = orchestra(*RUN)
    assert code == 0, err
    assert "going on after 0 of 80 lines, 80 in 2 batches" in err
    assert "100% of the answered lines" in out
    assert (creates(server), calls(server)) == (created, Counter())
    assert [line["custom_id"] for line in read("out.jsonl")] == [f"id-{n}" for n in range(80)]


def test_a_terminal_sees_where_lines_are() -> None:
    batch = OpenBatch(
        1, "acme/m", "acme", "a", "submitted", "in_progress\x1b[31m", "batch_1", 40, 30, 100.0, None, 172.5
    )
    outlets = (
        OutletTally("acme/m", "batch", 10, 0, 5, 5, 0.5, 0),
        OutletTally("local/x", "local", 3, 1, 5, 5, 0.0, 0),
    )
    progress = Progress(
        100,
        12,
        1,
        1,
        1,
        whole=True,
        outlets=outlets,
        batches=(batch,) * 9,
        seconds_left=60.0,
        deadline=1e300,
        usd_per_million={"local/x": 0.42},
    )
    told = below_bar(progress, 160.0)
    assert told[0].split() == ["acme/m", "by", "batch", "10", "lines", "5", "tokens", "in,", "5", "out", "$0.50"]
    assert told[1].split("  ")[-1] == "$0.42 per million tokens of machine time"
    assert told[2] == (
        "batch_1 by acme/m: 30 of 40 lines on their way, at the provider (in_progress?[31m), 1m00s old, "
        "next look in 12.5s"
    )
    assert told[-2] == "... and 1 batches more"
    assert told[-1].startswith("expected to end about 1970-01-01")
    assert told[-1].endswith("by in more years than a calendar has at the latest")
    assert below_bar(Progress(5, 5, 0, 0, 0, whole=True), 0.0) == []


def test_lines_elsewhere_say_when_it_ends(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("orchestra.cli.run_display.LINE_EVERY", 0.0)
    with RunDisplay().running("j") as show:
        show(Progress(5, 2, 0, 0, 0, whole=True, seconds_left=60.0, rate=1.0))
    assert "j: 2 of 5 lines, 1.0 lines/s, about 1m00s left; expected to end about " in capsys.readouterr().err


def test_batches_without_a_discount_are_told_as_such(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    use_batches(server)
    settings = Path("orchestra.toml")
    settings.write_text(settings.read_text().replace('kind = "openai"', 'kind = "openai-compatible"'))
    settings.write_text(
        settings.read_text().replace("[providers.acme.batch]", "[providers.acme.batch]\nenabled = true")
    )
    batch_file(*range(5))
    code, out, err = orchestra(*RUN)
    assert code == 0, err
    assert "100% of the answered lines went in batches" in out
    assert "lower price" not in out
    assert "went in batches" in orchestra("jobs", "show", "j")[1]
    text = settings.read_text().replace("output = 200.0", "output = 200.0\ntiers = { batch = 0.5 }")
    settings.write_text(text)
    assert "100% of the answered lines had the lower price" in orchestra("jobs", "show", "j")[1]


def test_a_limit_that_holds_a_job_is_told_instead_of_an_estimate() -> None:
    progress = Progress(9, 3, 0, 0, 0, whole=True, rate=0.01, seconds_left=600.0)
    head = {"traffic": "bulk", "job": "j", "waits_for": "usd_per_day", "seconds": 90_000.0}
    pool = {"provider": "acme", "head": head, "paused": None}
    reason = held_by([{"provider": "x", "head": None}, pool], "j")
    assert reason == "acme waits for usd per day, about 1d1h"
    told = stalled(progress, reason)
    assert str(told) == "3 of 9 lines"
    assert told.waiting == reason
    assert stalled(progress, None) is progress
    for change in ({"job": "other"}, {"seconds": 3.0}, {"seconds": None}, {"traffic": "interactive"}):
        assert held_by([{**pool, "head": {**head, **change}}], "j") is None


def test_the_end_is_promised_no_sooner_than_the_limits_allow() -> None:
    progress = Progress(100, 60, 0, 600, 300, whole=True, rate=6.0, seconds_left=6.7)
    limit = {"limit": 60.0, "window": 60.0, "available": 2.0, "interactive_reserve": 1.0}
    pool = {
        "provider": "acme",
        "head": {"traffic": "bulk", "job": "j", "waits_for": "requests (learned)", "seconds": 0.8},
        "paused": None,
        "in_use": {"interactive": 0, "bulk": 4},
        "dimensions": {
            "requests (learned)": limit,
            "concurrency": {"limit": 9, "window": None, "available": 5, "interactive_reserve": 1},
        },
    }
    assert within_limits(progress, [pool], "j").seconds_left == pytest.approx(40 - 4 - (2 - 1))
    assert within_limits(replace(progress, seconds_left=None), [pool], "j").seconds_left == pytest.approx(35.0)
    slow = replace(progress, seconds_left=90.0)
    assert within_limits(slow, [pool], "j") is slow, "it may be the provider that is slow"
    tokens = {**pool, "dimensions": {"tokens": {**limit, "limit": 90.0, "available": 0.0}}}
    assert within_limits(progress, [tokens], "j").seconds_left == pytest.approx(36 * 15 / 1.5)
    assert within_limits(progress, [pool], "other") is progress
    assert within_limits(progress, [pool, tokens], "j") is progress, "nobody knows how many go which way"
