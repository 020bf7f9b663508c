"""`orchestra plan`."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from orchestra.cli.main import app
from orchestra.errors import InputError
from orchestra.plan.this_machine import note_on_load

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 128,
}
PRICED = ["--per-hour", "2.50", "--compare-in", "0.15", "--compare-out", "0.60", "--batch-discount", "50%"]


def plan(*args: str):
    return CliRunner().invoke(app, ["plan", *args])


def test_a_page_of_80_columns():
    done = plan("llama-3.1-8b", "--device", "h100", "--prompt", "60", "--output", "50", *PRICED)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80
    said = " ".join(done.stdout.split())
    for part in (
        "llama-3.1-8b on H100 SXM, bfloat16, KV cache in bfloat16",
        "weights 16.06 GB of 85.90 GB (80 GiB)",
        "tokens of 131,072 bytes",
        "reads 2,345.0 GB/s, computes 693 TFLOP/s: 70% of its peak",
        "Device: https://www.nvidia.com/en-us/data-center/h100/",
        "memory: weights",
        "There the two regions meet: bound by memory below, by computing above.",
        "If prompts double",
        "hosted, in batches",
        "Against its batches, your own pays off from",
    ):
        assert part in said
    met = re.search(r"^ +296 .* compute, from here", done.stdout, re.M)
    assert met, done.stdout
    best = re.search(r"^ *\* (\d+) ", done.stdout, re.M)
    assert best
    assert f"max_num_seqs = {best[1]}" in said


def test_it_says_which_names_there_are():
    done = plan("--list")
    assert done.exit_code == 0
    assert re.match(r"models +smollm2-135m, .*\ndevices +this, a100, ", done.stdout)


def test_a_measurement_beside_others_says_so():
    assert note_on_load(0.3, 2) is None
    assert "a load of 1.8 on 2 cores" in str(note_on_load(1.8, 2))


def test_as_json():
    done = plan("qwen3-8b", "--device", "rtx4090", "--tpot", "25ms", "--json", *PRICED)
    told = json.loads(done.stdout)
    assert told["model"]["parameters"] == 8_190_735_360
    assert told["device"]["share"] == 0.7
    assert told["load"]["best"]["tpot_seconds"] <= 0.025
    assert told["load"]["best"] in told["load"]["operations"]
    assert told["load"]["concurrency"]["p50"] > told["load"]["concurrency"]["p95"] > 0
    assert told["cost"]["batch"] == pytest.approx(told["cost"]["hosted"] / 2)
    assert told["doubled_prompts"]["prompt_tokens_mean"] == 2 * told["load"]["prompt_tokens_mean"]


def test_what_the_engine_cannot_be_set_to_is_said():
    kept = ((), ("--kv-dtype", "float8"), ("--kv-dtype", "float16"))
    told = [plan("mistral-7b", "--device", "h100", *each) for each in kept]
    said = [" ".join(done.stdout.split()) for done in told]
    assert ['kv_dtype = "float8"' in each for each in said] == [False, True, False]
    warning = "keeps keys and values in bfloat16: the engine has no setting for float16"
    assert [warning in each for each in said] == [False, False, True]


def test_lengths_of_a_trace(tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"prompt_tokens": 30, "completion_tokens": 10}\n' * 3)
    done = plan("mistral-7b", "--device", "l4", "--trace", str(trace))
    assert done.exit_code == 0, done.output
    assert "prompts 30 tokens on average, outputs 10" in done.stdout


def test_a_config_on_this_machine(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    lengths = ["--prompt", "40", "--output", "10"]
    done = plan(str(tmp_path), *lengths, "--kv-bytes", "1000000", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["capacity"]["num_blocks"] == 1_000_000 // (512 * 16)
    assert told["device"]["bandwidth"] > 0
    assert all(0 < step["step_seconds"] < step["tpot_seconds"] for step in told["load"]["operations"])
    same = plan(str(tmp_path / "config.json"), *lengths, "--device", "l4", "--json")
    assert json.loads(same.stdout)["model"]["parameters"] == told["model"]["parameters"]


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["mistral-9b", "--device", "h100"], "did you mean mistral-7b"),
        (["mistral-7b", "--device", "k80"], "there are this, a100"),
        (["mistral-7b", "--dtype", "float16"], "computes in float32 or int8"),
        (["mistral-7b", "--of-peak", "0.5"], "this machine is measured"),
        (["mistral-7b", "--device", "h100", "--of-peak", "2"], "at most 1"),
        (["mistral-7b", "--device", "h100", "--tpot", "soon"], "--tpot: not a duration"),
        (["mistral-7b", "--device", "h100", "--compare-in", "1"], "go together"),
        (["mistral-7b", "--device", "h100", "--compare-in", "1", "--compare-out", "1"], "--per-hour"),
        (["mistral-7b", "--device", "h100", "--batch-discount", "5%"], "goes with --compare-in"),
        (["mistral-7b", "--device", "h100", *PRICED[:-1], "half"], "written 50% or 0.5"),
        (["mistral-7b", "--device", "h100", "--trace", "/nowhere"], "cannot be read"),
        (["mistral-7b", "--device", "h100", "--trace", "/nowhere", "--prompt", "5"], "tells all lengths"),
        (["/nowhere/config.json", "--device", "h100"], "No such file"),
        (["x" * 300, "--device", "h100"], "File name too long"),
        (["~nobody-at-all/x", "--device", "h100"], "cannot be read"),
    ],
)
def test_bad_input_is_refused_by_name(args, why):
    done = plan(*args)
    assert isinstance(done.exception, InputError)
    assert why in str(done.exception)


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "bert"}', '{"model_type": "llama"}', "[" * 10**6])
def test_a_file_that_is_no_config(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    done = plan(str(tmp_path), "--device", "h100")
    assert isinstance(done.exception, InputError)
    assert "cannot be planned for" in str(done.exception)


def test_a_gpu_is_planned_for_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from orchestra.cli.main import app\n"
        "app(['plan', 'llama-3.1-8b', '--device', 'h200'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "H200 SXM" in done.stdout
