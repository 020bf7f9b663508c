"""`orchestra bench`, whole, against the scripted provider."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest
from tiny_gguf import TinyGguf
from typer.testing import CliRunner

from orchestra.cli.main import app
from orchestra.errors import CallError, InputError
from orchestra.testing import Reply, ScriptedProvider, StreamScript

KEY = "sk-very-secret"
STREAM = Reply(stream=StreamScript(chunks=("one ", "two ", "three"), usage=True))
QUICK = ("--seconds", "0.6", "--warm-up", "0.1", "--arrivals", "constant", "--prompt", "5", "--output", "3")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCHESTRA_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", "--model", "m", *arguments])


def test_a_server_is_measured_and_reports_are_left(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_KEY", KEY)
    script = [STREAM, STREAM, Reply.error(503, message=f"no room for {KEY}")]
    with ScriptedProvider(script, default=STREAM) as provider:
        told = bench(
            *("--url", provider.base_url, "--api-key-env", "BENCH_KEY", "--rates", "20,30", "--bulk-share", "0.4"),
            *("--json", "new/a.json", "--html", "a.html", "--png", "a.png", *QUICK),
        )
    assert told.exit_code == 0, told.output
    assert f"m at {provider.base_url} under load" in told.output
    assert "probe: answered in" in told.stderr
    numbers = json.loads((tmp_path / "new" / "a.json").read_text())
    assert [point["rate"] for point in numbers["points"]] == [20.0, 30.0]
    assert [sum(one["calls"] for one in point["classes"].values()) for point in numbers["points"]] == [12, 18]
    asked = [hit.json for hit in provider.log]
    assert len(asked) == 1 + 13 + 20  # the probe, and the calls with those of the warm-up
    page = (tmp_path / "a.html").read_text()
    assert "no room for ***" in page
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert not [left for left in (told.output, told.stderr, json.dumps(numbers), page) if KEY in left]


def test_a_model_of_the_settings_is_measured_through_its_routes(tmp_path):
    with ScriptedProvider(default=STREAM) as provider:
        (tmp_path / "orchestra.toml").write_text(
            f"""
            [providers.own]
            kind = "openai-compatible"
            base_url = "{provider.base_url}"
            prices = [{{input = 1.0, output = 1.0}}]
            [models.m]
            routes = ["own/big"]
            """
        )
        told = bench("--rates", "20", "--json", "a.json", *QUICK)
    assert told.exit_code == 0, told.output
    assert "m (own/big) under load" in told.output
    assert json.loads((tmp_path / "a.json").read_text())["points"][0]["usd_per_million_tokens"] == pytest.approx(
        1.0
    )
    assert {hit.json["model"] for hit in provider.log} == {"big"}


def test_an_engine_in_this_process_answers_in_full(tmp_path):
    TinyGguf().write(tmp_path / "tiny.gguf")
    load = ("--rates", "20", "--bulk-share", "0.5", "--json", "a.json")
    told = CliRunner().invoke(app, ["bench", "--model", "tiny.gguf", *load, *QUICK])
    assert told.exit_code == 0, told.output
    (point,) = json.loads((tmp_path / "a.json").read_text())["points"]
    assert {kind: one["answered"] for kind, one in point["classes"].items()} == {
        kind: one["calls"] for kind, one in point["classes"].items()
    }
    assert set(point["classes"]) == {"interactive", "bulk"}
    assert json.loads((tmp_path / "a.json").read_text())["settings"]["further fields"] == '{"ignore_eos": true}'


def test_a_promise_that_no_rate_keeps_fails_the_command():
    with ScriptedProvider(default=STREAM, service_time=0.05) as provider:
        told = bench("--url", provider.base_url, "--rates", "10", "--slo", "ttft=1ms", *QUICK)
    assert told.exit_code == 1
    assert "No rate that was tried keeps the SLO" in told.output


def test_a_trace_comes_as_it_came(tmp_path):
    lines = [{"at": 7 + at / 10, "prompt_tokens": 3, "output_tokens": 2, "traffic": "bulk"} for at in range(5)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with ScriptedProvider(default=STREAM) as provider:
        told = bench("--url", provider.base_url, "--trace", "t.jsonl", "--warm-up", "0", "--json", "a.json")
    assert told.exit_code == 0, told.output
    (point,) = json.loads((tmp_path / "a.json").read_text())["points"]
    assert point["rate"] == pytest.approx(10.0)
    assert point["classes"]["bulk"]["calls"] == 5


def test_a_file_that_cannot_be_written_costs_no_other(tmp_path):
    broken = Reply.error(500, message="\x1b[31mred \ud800")
    with ScriptedProvider([STREAM], default=broken) as provider:
        files = ("--json", "/dev/full", "--html", "a.html", "--png", "a.foo")
        told = bench("--url", provider.base_url, "--rates", "20", *files, *QUICK)
    assert told.exit_code == 1, told.output
    assert "/dev/full was not written: No space left on device" in told.output
    assert "12 x " in told.output
    assert "?[31mred ?" in told.output
    assert "?[31mred ?" in (tmp_path / "a.html").read_text()
    assert (tmp_path / "a.foo").read_bytes().startswith(b"\x89PNG")


def test_a_target_that_does_not_answer_gets_no_load(monkeypatch):
    monkeypatch.setenv("BENCH_KEY", KEY)
    with ScriptedProvider(default=Reply.error(401, message=f"not with {KEY}")) as provider:
        told = bench("--url", provider.base_url, "--api-key-env", "BENCH_KEY", "--rates", "10", *QUICK)
    assert isinstance(told.exception, CallError)  # main() makes it one line and exit code 1
    assert "does not answer, and no load was sent" in str(told.exception)
    assert KEY not in str(told.exception)
    assert len(provider.log) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--rates 1,2,4"),
        (("--rates", "0"), "calls a second"),
        (("--rates", "1,x"), "calls a second"),
        (("--rates", "1", "--slo", "ttft=0"), "SLO"),
        (("--rates", "1", "--slo", "ttft=1s", "--bulk-share", "1"), "there is none"),
        (("--rates", "1", "--body", "[]"), "JSON object"),
        (("--rates", "1", "--body", "{"), "no JSON"),
        (("--rates", "1", "--json", "."), "is a folder"),
        (("--rates", "1", "--api-key-env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE is not set"),
        (("--rates", "1", "--config", "orchestra.toml"), "leave out one"),
        (("--rates", "1", "--trace", "none.jsonl"), "cannot be read"),
        (("--trace", "bulk.jsonl", "--slo", "ttft=1s"), "in bulk.jsonl there is none"),
        (("--trace", "bulk.jsonl", "--prompt", "9"), "leave --prompt out"),
        (("--rates", "1", "--seconds", "inf"), "--seconds: a duration must be"),
        (("--rates", "1", "--seconds", "1ms"), "--seconds: must be 0.1s or longer"),
        (("--rates", "1", "--slo", "ttft=500"), "write 500ms, 500s"),
        (("--rates", "1", "--dollars-per-hour", "inf"), "--dollars-per-hour must be"),
        (("--rates", "1", "--body", "[" * 100_000), "nested too deeply"),
        (("--rates", "1", "--json", "x" * 300), "File name too long"),
        (("--rates", "1", "--slo", "ttft=1s,share=95"), "up to 100%"),
    ],
)
def test_bad_usage_sends_nothing(tmp_path, arguments, said):
    (tmp_path / "bulk.jsonl").write_text(
        "\n".join(f'{{"at": {at}, "prompt_tokens": 3, "output_tokens": 2, "traffic": "bulk"}}' for at in range(2))
    )
    told = bench("--url", "http://127.0.0.1:9/v1", *arguments)
    assert isinstance(told.exception, InputError)
    assert said in str(told.exception)


def test_a_model_that_nobody_knows_is_told_with_those_that_are():
    told = bench("--rates", "1")
    assert isinstance(told.exception, InputError)
    assert "--model m" in str(told.exception)
    assert "smollm2-135m" in str(told.exception)


def test_interrupted_it_reports_what_was_measured(tmp_path):
    program = "from orchestra.cli.main import main; main()"
    with ScriptedProvider(default=STREAM) as provider:
        arguments = ("--url", provider.base_url, "--rates", "20,20.5", "--seconds", "1", "--warm-up", "0.1")
        command = [sys.executable, "-c", program, "bench", "--model", "m", *arguments, "--json", "a.json"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            for line in process.stderr:
                if line.startswith("20.5 calls/s"):
                    break
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "Interrupted: these are the figures" in out
    assert json.loads((tmp_path / "a.json").read_text())["points"][0]["rate"] == 20.0


def test_the_help_teaches_by_example():
    told = CliRunner().invoke(app, ["bench", "--help"])
    said = re.sub(r"\s+", " ", told.output)
    for part in ("orchestra bench --url http://localhost:8000/v1", "--slo ttft=500ms,tpot=50ms", "Exit code 0"):
        assert part in said
