"""``orchestra simulate``: its options, its page of 80 columns, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from orchestra.cli.main import app
from orchestra.errors import InputError
from orchestra.observe.event_log import EventLog
from orchestra.observe.events import Event
from orchestra.policies.traffic import TrafficClass

SETTINGS = """
[providers.one]
kind = "openai"
api_key = "env:NOT_SET_ANYWHERE"
[[providers.one.limits]]
models = ["m*"]
requests_per_minute = 60
[[providers.one.prices]]
input = 1.0
output = 4.0
[models.fast]
routes = ["one/m", "local/small"]
[local.small]
weights = "smollm2-135m"
"""
LITTLE = ("--for", "4m", "--rate", "0.5", "--prompt", "100", "--output", "20", "--batch-time", "one=3m")


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "orchestra.toml"
    path.write_text(SETTINGS)
    return path


def simulate(settings: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", "--config", str(settings), *arguments])


def test_it_says_what_comes_of_a_day(settings: Path):
    told = simulate(
        settings,
        *LITTLE,
        *("--engine", "small=h100", "--outage", "one=00:02-00:03", "--failing", "1%", "--ttft", "one=200ms"),
        *("--job", "00:01:30:26h", "--job", "00:01:200:1m", "--tpot", "10ms"),
    )
    assert told.exit_code == 1, "one job misses its deadline"
    lines = told.stdout.splitlines()
    assert max(len(line) for line in lines) <= 80
    page = " ".join(told.stdout.split())
    for words in ("interactive", "one/m at once", "one/m batches 30", "local/small engine", "engine small: busy"):
        assert words in page
    assert "kept" in page
    assert "missed by" in page
    assert "1 of 2 jobs did not keep their deadline." in page
    assert "one m* requests/min 60" in page
    assert "It costs $" in page


def test_json_is_the_same_each_time_and_says_all(settings: Path):
    arguments = (*LITTLE, "--engine", "small=slots:4,step:20ms", "--allows", "one=requests:50,burst:30", "--json")
    told = simulate(settings, *arguments)
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["missed_deadlines"] == 0
    assert found["classes"]["bulk"]["calls"] == found["classes"]["bulk"]["answered"] > 30
    assert simulate(settings, *arguments).stdout == told.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "big=h100"], "there is: small"),
        (["--engine", "small=abacus"], "abacus"),
        (["--allows", "one=calls:3"], "requests:300"),
        (["--failing", "two=1%", "--engine", "small=slots:1,step:1ms"], "no provider 'two'"),
        (["--failing", "150%"], "no share"),
        (["--allows", "one=at_once:0"], "1 or more"),
        (["--for", "500d", "--engine", "small=slots:1,step:1ms"], "500 days are more"),
        (["--events", "nowhere.jsonl", "--rate", "2"], "leave --rate out"),
        (["--events", "nowhere.jsonl", "--for", "2h"], "leave --for out"),
        (["--for", "soon"], "--for"),
        ([], "--engine small=h100"),
        (["--events", "nowhere.jsonl"], "cannot be read"),
    ],
)
def test_bad_usage_is_refused_with_the_remedy(settings: Path, arguments: list[str], said: str):
    told = simulate(settings, *arguments)
    assert isinstance(told.exception, InputError)
    assert said in str(told.exception)


def test_a_recording_is_as_long_as_it_was_unless_it_is_said_how_fast_a_provider_is(settings: Path):
    """A log of one instant, too. An engine by the name of a device is planned for the calls of the log."""
    path = settings.with_name("events.jsonl")
    told = {"call": "a", "traffic": TrafficClass.INTERACTIVE, "route": "one/m", "model": "fast", "attempt": 1}
    log = EventLog(path)
    log(Event(kind="queued", at=7.0, estimated_input_tokens=50.0, **told))
    log(Event(kind="sent", at=7.0, **told))
    log(Event(kind="settled", at=7.0, input_tokens=60, output_tokens=5, duration=9.0, **told))
    log.close()

    def total(*more: str) -> float:
        found = simulate(settings, "--events", str(path), "--engine", "small=h100", "--json", *more)
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)["classes"]["interactive"]["totals"]["p50"]

    assert total() == pytest.approx(9.0, abs=0.01)
    assert total("--ttft", "1s", "--tpot", "one=100ms") == pytest.approx(1.5, abs=0.01)


def test_a_job_that_is_open_at_the_end_has_not_kept_its_deadline(settings: Path):
    arguments = ("--rate", "0", "--for", "10m", "--job", "00:05:100:26h", "--drain", "1m", "--json")
    told = simulate(settings, *arguments, "--engine", "small=slots:1,step:1ms")
    assert told.exit_code == 1, told.output
    (job,) = json.loads(told.stdout)["jobs"]
    assert (job["kept"], job["is_open"], job["seconds"]) == (False, True, None)
