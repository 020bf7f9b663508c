"""``orchestra run --dry-run``: where lines would go, at what cost, and nothing is sent."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from run_lab import settings_with_batches

from orchestra.jobs import JobStore, JsonlFile, format_usd
from orchestra.jobs.intake.line_parser import LineParser
from orchestra.jobs.ledger.record import Dealt, End
from orchestra.testing import ScriptedProvider

Make = Callable[..., Any]


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
    assert "at most 100 out of those with a bound, 30 lines set no max_tokens: up to what the model's" in out
    assert "fast: 31 lines, by fake/m" in out
    assert "nothing was sent" in out
    assert (server.log, sorted(os.listdir(tmp_path))) == ([], before)


def test_a_dry_run_checks_the_deadline_too(server: ScriptedProvider, orchestra: Make, batch_file: Make) -> None:
    batch_file(1)
    code, _, err = orchestra("run", "in.jsonl", "--out", "o", "--dry-run", "--deadline", "soon")
    assert (code, "--deadline" in err) == (2, True)


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


def mixed(request_of: Make, *, fast: int = 90, plain: int = 5, bound: int | None = 10) -> None:
    """Write lines for an account with batches, one without, and one line without a bound."""
    bounds = {} if bound is None else {"max_tokens": bound}
    lines = [request_of(f"question {n}", **bounds) for n in range(fast)]
    lines += [{"model": "plain", "prompt": "x" * 40, "max_tokens": 7} for _ in range(plain)]
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def dry(orchestra: Make, *more: str) -> list[str]:
    code, out, err = orchestra("run", "in.jsonl", "--out", "out.jsonl", "--dry-run", *more)
    assert code == 0, err
    return [line.strip() for line in out.splitlines()]


def test_a_mixed_file_with_time(server: ScriptedProvider, orchestra: Make, request_of: Make) -> None:
    Path("orchestra.toml").write_text(settings_with_batches(server))
    mixed(request_of)
    told = dry(orchestra, "--deadline", "24h")
    tokens = int(told[0].split("about ")[1].split()[0].replace(",", ""))
    riding = tokens - 5 * 10
    assert told[0] == f"in.jsonl: 95 lines, about {tokens:,} tokens in, at most 935 out"
    least, most = riding * 50 / 1e6, (riding * 100 + 900 * 200) / 1e6
    assert told[1:] == [
        "fast: 90 lines, by acme/m",
        "90 lines of /v1/chat/completions in 3 batches, by acme/m: there is time for its window",
        f"{format_usd(least)} to {format_usd(most)}, 1d0h at the longest",
        "plain: 5 lines, by fake/p",
        "5 lines of /v1/completions at once, by fake/p: none of its routes has batches for this endpoint",
        "price unknown",
        f"cost: {format_usd(least)} to {format_usd(most)}, and what has no price",
        "the least: empty answers; the most: answers as long as they may be, at the full price",
        "price unknown of 5 lines; to know it, add [[providers.fake.prices]] for fake/p",
        "duration: not known before it has begun",
        "batches of fake are off by default, since not every server of its kind has them; where it has, set "
        "[providers.fake.batch] enabled = true",
        "nothing was sent",
    ]
    assert (server.log, sorted(os.listdir())) == ([], ["in.jsonl", "orchestra.toml"])


def test_without_a_deadline_nothing_rides(server: ScriptedProvider, orchestra: Make, request_of: Make) -> None:
    Path("orchestra.toml").write_text(
        settings_with_batches(server) + "[[providers.acme.limits]]\nrequests_per_minute = 60\n"
    )
    mixed(request_of, plain=0, bound=None)
    told = dry(orchestra)
    assert "90 lines of /v1/chat/completions at once, by acme/m: no deadline: nobody gave time away" in told
    assert "duration: about 1m46s, if nobody else uses the account" in told  # at 85 % of 60 a minute
    assert any(line.startswith("cost: $") and "or more: not all lines bound" in line for line in told)
    assert server.log == []


def test_what_batches_take_is_known_from_earlier_ones(
    server: ScriptedProvider, orchestra: Make, request_of: Make
) -> None:
    """With an hour to go nothing rides, until batches are known to be back in minutes."""
    settings = settings_with_batches(server)
    Path("orchestra.toml").write_text(settings)
    mixed(request_of, plain=0)
    assert any(
        "at once, by acme/m: no batch would be back in time" in line for line in dry(orchestra, "--deadline", "1h")
    )
    with closing(JobStore(".orchestra/jobs.db")) as store:
        job = store.create("before", created=1.0, model=None, deadline=None, source=None)
        for _ in range(3):
            facts = {"provider": "acme", "account": "a", "route": "acme/m", "model": "m", "headers": ()}
            batch = store.batches.open(job.id, path="/chat/completions", window=1.0, now=0.0, **facts)
            store.batches.seal(batch.id)
            store.batches.creating(batch.id, 0.0)
            store.batches.submitted(batch.id, f"b{batch.id}", "x", None, 0.0)
            store.batches.end(batch.id, "completed", 240.0)
    told = dry(orchestra, "--deadline", "1h")
    assert "90 lines of /v1/chat/completions in 3 batches, by acme/m: batches are seen to be back in time" in told
    assert "duration: about 4m00s, if nobody else uses the account" in told
    assert server.log == []


def test_what_a_dry_run_says_is_what_a_run_does(
    server: ScriptedProvider, orchestra: Make, request_of: Make
) -> None:
    Path("orchestra.toml").write_text(settings_with_batches(server))
    mixed(request_of)
    told = "\n".join(dry(orchestra, "--deadline", "24h"))
    assert "90 lines of /v1/chat/completions in 3 batches" in told
    code, out, err = orchestra("run", "in.jsonl", "--out", "out.jsonl", "--deadline", "24h")
    assert code == 0, err
    assert sum(hit.path == "/v1/batches" and hit.method == "POST" for hit in server.log) == 3
    assert sum(hit.path == "/v1/completions" for hit in server.log) == 5
    assert [line.split()[:4] for line in out.splitlines()[1:3]] == [
        ["acme/m", "by", "batch", "90"],
        ["fake/p", "5", "lines", "55"],
    ]


def capped(server: ScriptedProvider, usd: float, *, prices: bool = True, more: str = "") -> None:
    settings = settings_with_batches(server, prices=prices)
    Path("orchestra.toml").write_text(f"{settings}[[providers.acme.limits]]\nusd_per_day = {usd}\n{more}")


def test_a_cap_without_a_price_lets_nothing_go(
    server: ScriptedProvider, orchestra: Make, request_of: Make
) -> None:
    capped(server, 5.0, prices=False)
    mixed(request_of)
    code, out, _ = orchestra("run", "in.jsonl", "--out", "o", "--dry-run")
    assert code == 2
    assert (
        "usd_per_day is set for acme/m, and no price: nothing will be sent there; add [[providers.acme.prices]]"
        in out
    )
    assert "nothing of model 'fast' would be sent" in out
    assert "model 'plain'" not in out


def test_a_cap_below_the_cost_is_told(server: ScriptedProvider, orchestra: Make, request_of: Make) -> None:
    mixed(request_of, plain=0)
    capped(server, 1000.0)
    assert not any("usd_per_day" in line for line in dry(orchestra))
    capped(server, 0.1)
    told = "warning: usd_per_day of acme is $0.10, of which bulk may use $0.085 now; the lines take about $"
    assert any(line.startswith(told) for line in dry(orchestra))
    capped(server, 1000.0)
    mixed(request_of, plain=0, bound=None)
    assert any("the cost at acme is bounded by nothing, and usd_per_day is" in line for line in dry(orchestra))


def test_the_limits_of_a_day_are_in_the_forecast(
    server: ScriptedProvider, orchestra: Make, batch_file: Make
) -> None:
    settings = Path("orchestra.toml").read_text()
    settings = settings.replace("max_concurrency = 8", "requests_per_minute = 600, requests_per_day = 5")
    Path("orchestra.toml").write_text(f'{settings}[budget]\nbackend = "sqlite:budget.db"\n')
    batch_file(*range(20))
    told = dry(orchestra)
    assert "duration: about 4d0h, if nobody else uses the account" in told  # four a day beside the reserve
    assert (
        "warning: requests_per_day of fake is 5, of which bulk may use 4 now; the lines take about 20, so the "
        "last of them goes after 4 days; what is still waiting at a deadline fails" in told
    )
    batch_file(*range(100, 103))
    assert orchestra("run", "in.jsonl", "--out", "out.jsonl")[0] == 0
    batch_file(*range(2))
    assert any("bulk may use 1 now; the lines take about 2, so the last" in line for line in dry(orchestra))


def test_batches_that_are_off_on_purpose_are_not_recommended(
    server: ScriptedProvider, orchestra: Make, request_of: Make
) -> None:
    settings = settings_with_batches(server)
    mixed(request_of)
    for enabled, told in (("", True), ("[providers.fake.batch]\nenabled = false\n", False)):
        Path("orchestra.toml").write_text(settings + enabled)
        assert any("enabled = true" in line for line in dry(orchestra, "--deadline", "24 hours")) is told
        assert not any("enabled = true" in line for line in dry(orchestra)), "without a deadline nothing rides"


def test_a_batch_whose_price_nobody_publishes_counts_in_full(
    server: ScriptedProvider, orchestra: Make, request_of: Make
) -> None:
    batches = "[providers.fake.batch]\nenabled = true\n[[providers.fake.prices]]\ninput = 1.0\noutput = 2.0\n"
    mixed(request_of, fast=0)
    for tiers, noted in (("", True), ("tiers = { batch = 0.25 }\n", False)):
        Path("orchestra.toml").write_text(settings_with_batches(server) + batches + tiers)
        told = dry(orchestra, "--deadline", "24h")
        assert any(line.startswith("batches of fake are counted at the full price") for line in told) is noted
        assert any("in 1 batch, by fake/p" in line for line in told)


def test_one_model_for_embeddings_too_is_doubtful(
    server: ScriptedProvider, orchestra: Make, request_of: Make
) -> None:
    Path("orchestra.toml").write_text(settings_with_batches(server))
    embedding = {
        "custom_id": "e",
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": "plain", "input": "x"},
    }
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (request_of(1), embedding)))
    assert "warning: --model asks 'fast' for /v1/embeddings too (1 line): does it serve that?" in dry(
        orchestra, "--model", "fast"
    )
    assert not any("warning" in line for line in dry(orchestra))


def test_of_a_job_that_exists_what_is_left_is_forecast(
    server: ScriptedProvider, orchestra: Make, request_of: Make
) -> None:
    Path("orchestra.toml").write_text(settings_with_batches(server))
    mixed(request_of, plain=0)
    with closing(JobStore(".orchestra/jobs.db")) as store, JsonlFile.open("in.jsonl") as file:
        source = file.digest()
        job = store.create("j", created=1.0, model=None, deadline=time.time() + 86_400, source=source, expected=90)
        lines = [line for chunk in file.chunks(LineParser()) for line in chunk]
        store.add(job.id, lines[:60])
        batch = store.batches.open(
            job.id,
            provider="acme",
            account="a",
            route="acme/m",
            model="m",
            path="/v1/chat/completions",
            headers=(),
            window=1.0,
            now=0.0,
        )
        store.batches.deal(job.id, {batch.id: Dealt([1, 2, 3]), 0: Dealt([4, 5])})
        store.finish(job.id, [End(n) for n in (1, 4, 6, 7)])
    code, out, err = orchestra("run", "in.jsonl", "--out", "o", "--job", "j", "--dry-run", "--deadline", "5m")
    assert code == 0, err
    # of 90 four have ended and two ride
    assert "exists already; 84 of its 90 lines are to be asked, beside 2 that ride in batches already" in err
    assert "its deadline holds, 20" in err
    assert "in.jsonl: 84 lines" in out
    assert "in 3 batches, by acme/m: there is time for its window" in out, "by the deadline that it began with"
    assert server.log == []
