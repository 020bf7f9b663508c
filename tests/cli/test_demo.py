"""`orchestra demo`, whole, on the real model."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]


PROGRAM = """
from dataclasses import replace
from orchestra.cli.demo import workload
workload._QUESTION_TOKENS = 12
workload.TASKS = tuple(replace(task, max_tokens=12) for task in workload.TASKS)
tickets = tuple(replace(ticket, text=ticket.text[:80]) for ticket in workload.load_tickets())
workload.load_tickets = lambda: tickets
from orchestra.cli.main import main
main()
"""
"""The command, on shorter texts, for time's sake."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory, model_path):
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    command = [sys.executable, "-c", PROGRAM, "demo", "--quick", "--out", str(out)]
    # the other core may be busy, and threads that spin while they wait for it would wait for ever
    env = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out, done


def test_it_shows_a_table_and_says_what_it_left(demo):
    _, done = demo
    assert done.stderr == ""
    for said in (
        "time to first token, p95",
        "bulk output",
        "tokens/s",
        "too few for a p95",
        "more for as long as",
        "demo.png",
    ):
        assert said in " ".join(done.stdout.split())
    assert "Kept" not in done.stdout


def test_results_are_batch_output_lines(demo):
    out, _ = demo
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    ids = {line["custom_id"] for line in lines}
    assert len(lines) == len(ids) >= 6
    for line in lines:
        assert set(line) == {"id", "custom_id", "response", "error"}
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        assert line["response"]["body"]["choices"][0]["message"]["content"].strip()


def test_numbers_are_those_of_the_run(demo):
    out, _ = demo
    numbers = json.loads((out / "demo.json").read_text())
    assert len(numbers["alone"]) == 4
    assert len(numbers["loaded"]) == 6
    assert all(0 < answer["ttft"] <= answer["total"] for answer in numbers["alone"] + numbers["loaded"])
    questions = [answer["question"] for answer in numbers["alone"] + numbers["loaded"]]
    assert len(set(questions)) == 10
    start, end = numbers["window"]
    beside = [step for step in numbers["steps"] if start <= step["at"] < end]
    assert any(step["bulk"] for step in beside)
    assert any(step["interactive"] for step in beside)
    assert not any(step["bulk"] for step in numbers["steps"] if step["at"] < start)
    bulk = numbers["bulk"]
    assert bulk["answered"] == bulk["lines"] == len((out / "results.jsonl").read_text().splitlines())
    assert numbers["figures"]["bulk_tokens_per_second"] == pytest.approx(
        bulk["output_tokens"] / (bulk["end"] - bulk["start"])
    )


def test_the_plot_is_there(demo):
    out, _ = demo
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
