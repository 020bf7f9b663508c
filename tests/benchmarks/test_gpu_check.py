"""The GPU's benchmark, without a GPU: it runs, it says what it did not measure, and nothing that fails is lost."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import gpu_check  # noqa: E402 - it is no installed package
from gpu import engine_decode, timing  # noqa: E402
from gpu.cache import BLOCK_SIZE, Cache, attention  # noqa: E402
from gpu.engines import open_runner  # noqa: E402
from gpu.errors import WrongResult, compared, relative_error  # noqa: E402
from gpu.figures import Figure, Target, told  # noqa: E402
from gpu.harness import Job, Section, allowances, run_all  # noqa: E402
from gpu.lab import Lab  # noqa: E402
from gpu.models import MODELS, floor_bytes, weight_bytes_read  # noqa: E402
from gpu.report import summary  # noqa: E402
from gpu_lab import FakeDevice, fake_kernels, on_device, weights_of  # noqa: E402

from orchestra.kernels.attention import reference  # noqa: E402
from orchestra.localengine.gpu import runner as gpu_runner  # noqa: E402
from orchestra.localengine.gpu.runner import GpuRunner  # noqa: E402

NAN = float("nan")
CPU = torch.device("cpu")
SPEEDS = {"GB/s", "TFLOP/s", "tokens/s", "ms", "x"}


def make_lab() -> Lab:
    job = Job(section="any", until=time.time() + 600, rehearsal=True, known={"copy": 1e9, "matmul": 1e9})
    return Lab(job, lambda known: None)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton for this machine")
@pytest.mark.timeout(900)
def test_a_rehearsal_goes_through_everything_and_shows_no_speed(tmp_path: Path) -> None:
    # but for the peer, which is another's and slow to import
    names = {section.group or section.name for section in gpu_check.SECTIONS} - {"transformers"}
    path = tmp_path / "figures.json"
    command = [sys.executable, str(BENCHMARKS / "gpu_check.py"), "--rehearse", "--json", str(path)]
    command += [f"--only={name}" for name in names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    result = json.loads(path.read_text())
    assert (done.returncode, result["failed"], result["missed"]) == (0, [], []), done.stdout + done.stderr
    assert result["rehearsal"]
    assert "nothing here was measured" in done.stdout
    assert "nothing here was measured" in result["warning"]
    lines = result["figures"]
    assert {line["section"] for line in lines} == {one.name for one in gpu_check.SECTIONS} - {"transformers"}
    assert all(line["rehearsed"] for line in lines)
    speeds = [line for line in lines if line.get("unit") in SPEEDS]
    assert len(speeds) > 20
    assert not [line for line in speeds if {"value", "share", "holds", "note"} & line.keys()]
    assert not [unit for unit in SPEEDS - {"x"} if f" {unit}" in done.stdout]
    errors = [line for line in lines if line.get("unit") not in SPEEDS]
    assert errors
    assert all(line["holds"] for line in errors)


def test_without_a_gpu_it_says_so_and_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([]) == 2
    said = capsys.readouterr()
    assert "needs a CUDA GPU" in said.err or "needs Triton" in said.err
    assert said.out == ""


def test_a_section_writes_its_lines_as_a_process_of_its_own(tmp_path: Path) -> None:
    asked, lines = tmp_path / "job.json", tmp_path / "lines.jsonl"
    asked.write_text(
        json.dumps({"section": "ceilings", "until": time.time() + 60, "rehearsal": True, "known": {}})
    )
    gpu_check._section(asked, lines)
    machine, copy, first, matmul, second = map(json.loads, lines.read_text().splitlines())
    assert machine["machine"]["torch"] == torch.__version__
    assert copy["known"]["copy"] == pytest.approx(1e9 * first["value"])
    assert matmul["known"]["matmul"] == pytest.approx(1e12 * second["value"])


# Sections and their processes


def section(name: str, group: str = "") -> Section:
    return Section(name=name, title=name, module="gpu.ceilings", share=1.0, group=group)


def run_scripts(
    scripts: dict[str, str], seconds: float = 60.0, group: str = ""
) -> tuple[list[Any], dict[str, Any]]:
    """Run a section for each script, which is given its job and a function to write lines."""
    start = (
        "import json, os, sys, time; job = json.load(open(sys.argv[1])); out = open(sys.argv[2], 'a')\n"
        "def write(**line): print(json.dumps(line), file=out, flush=True)\n"
    )
    lines: list[tuple[str, Figure]] = []

    def command(asked: Path, its: Path) -> list[str]:
        script = scripts[json.loads(asked.read_text())["section"]]
        return [sys.executable, "-S", "-c", start + script, str(asked), str(its)]

    beside = run_all(
        [section(name, group) for name in scripts], seconds, command, lambda one, f: lines.append((one.name, f))
    )
    return lines, beside


def test_what_one_section_measures_the_next_one_knows() -> None:
    lines, beside = run_scripts(
        {
            "first": "write(machine={'gpu': 'one'}); write(known={'copy': 7.0}); write(what='a', value=1.0)",
            "second": "write(what='b', value=job['known']['copy'], target={'least': 8})",
        }
    )
    assert beside == {"machine": {"gpu": "one"}}
    assert [(name, figure.what, figure.value, figure.holds) for name, figure in lines] == [
        ("first", "a", 1.0, None),
        ("second", "b", 7.0, False),
    ]


def test_a_section_that_crashes_keeps_what_it_wrote_and_the_next_one_runs() -> None:
    lines, _ = run_scripts(
        {
            "crash": "write(what='before', value=1.0); out.write('{\"what'); out.flush(); os.abort()",
            "exit": "sys.exit('no kernel image')",
            "well": "write(what='after', value=2.0)",
        }
    )
    assert [(name, figure.value) for name, figure in lines] == [
        ("crash", 1.0),
        ("crash", None),
        ("exit", None),
        ("well", 2.0),
    ]
    assert "SIGABRT" in lines[1][1].error
    assert lines[2][1].error == "ended with status 1: no kernel image"


def test_a_section_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan = tmp_path / "orphan"
    hangs = (
        "import pathlib, subprocess; child = subprocess.Popen(['sleep', '600']); write(what='before', value=1.0)\n"
        f"here = pathlib.Path({str(orphan)!r}); here.with_suffix('.part').write_text(str(child.pid))\n"
        "here.with_suffix('.part').rename(here); time.sleep(600)"
    )

    class Impatient(subprocess.Popen[bytes]):
        """Its time is over when it hangs, however long it took to come so far."""

        def wait(self, timeout: float | None = None) -> int:
            if timeout is None or orphan.exists():
                return super().wait(timeout)
            while not orphan.exists():
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess, "Popen", Impatient)
    lines, _ = run_scripts({"hangs": hangs, "well": "write(what='after', value=2.0)"})
    assert [figure.value for _, figure in lines] == [1.0, None, 2.0]
    assert "was ended after 30 s" in lines[1][1].error
    status = Path(f"/proc/{orphan.read_text()}/status")
    assert not status.exists() or "zombie" in status.read_text()


def test_sections_of_a_group_run_at_once(tmp_path: Path) -> None:
    """Each waits for the other's file, so that neither could end alone."""
    meet = (
        f"import pathlib; here = pathlib.Path({str(tmp_path)!r}); (here / job['section']).touch()\n"
        "while len(list(here.iterdir())) < 2: time.sleep(0.01)\n"
        "write(what=job['section'], value=1.0)"
    )
    lines, _ = run_scripts({"one": meet, "other": meet}, group="both")
    assert [(name, figure.value, figure.error) for name, figure in lines] == [("one", 1.0, ""), ("other", 1.0, "")]


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 1)), min_size=1, max_size=8),
    st.floats(1, 1000),
)
def test_all_sections_end_in_time_and_what_one_leaves_goes_to_the_next(
    sections: list[tuple[float, float]], seconds: float
) -> None:
    now = 0.0
    got = allowances([share for share, _ in sections], seconds, lambda: now)
    whole = sum(share for share, _ in sections)
    for (share, used), allowed in zip(sections, got, strict=True):
        assert allowed >= seconds * share / whole * (1 - 1e-9)
        now += used * allowed
        assert now <= seconds * (1 + 1e-9)
    if all(used == 1 for _, used in sections):
        assert now == pytest.approx(seconds)


# Figures


@pytest.mark.parametrize(
    ("figure", "holds"),
    [
        (Figure(what="a", value=3.0), None),
        (Figure(what="a", target=Target(least=1)), None),
        (Figure(what="a", value=3.0, target=Target(least=3)), True),
        (Figure(what="a", value=3.0, share=0.7, target=Target(least=0.75)), False),
        (Figure(what="a", value=0.02, target=Target(most=0.01)), False),
        (Figure(what="a", value=0.0, target=Target(most=0.0)), True),
        (Figure(what="a", value=NAN, target=Target(most=0.01)), False),
    ],
)
def test_a_target_is_for_the_share_where_there_is_one(figure: Figure, holds: bool | None) -> None:
    assert figure.holds is holds
    told_as = json.loads(json.dumps(figure.as_told()))
    assert told_as["what"] == "a"
    again = Figure.from_told(told_as)
    assert again.holds is holds
    assert repr(again) == repr(figure)


def test_the_end_is_well_only_where_nothing_failed_and_nothing_was_missed() -> None:
    well = Figure(what="a", value=3.0, unit="x", target=Target(least=3))
    for others, ok in (
        ([Figure(what="b", note="left out: no time was left", target=Target(least=3))], True),
        ([Figure(what="b", error="it broke")], False),
        ([Figure(what="b", value=2.0, target=Target(least=3))], False),
    ):
        result = summary([(section("s"), figure) for figure in [well, *others]], {}, 1.0, rehearsal=False)
        assert result["ok"] is ok
        assert "warning" not in result


def test_a_rehearsed_speed_has_no_number_and_one_that_is_none_fails() -> None:
    speed = Figure(what="a", value=3.0, unit="GB/s", share=0.5, of="copy", note="3 us")
    assert speed.as_rehearsed() == Figure(what="a", unit="GB/s", rehearsed=True)
    assert Figure(what="a", value=NAN, unit="GB/s").as_rehearsed().error
    assert Figure(what="a", value=0.1, unit="rel. error").as_rehearsed().value == 0.1


def test_an_error_is_told_on_one_line() -> None:
    group = ExceptionGroup("two", [RuntimeError("CUDA error: \n an illegal access\n" + "x" * 1000), ValueError()])
    assert told(group).startswith("RuntimeError: CUDA error: an illegal access xxx")
    assert len(told(group)) < 400


# What is measured with


def test_pieces_of_a_section_that_fail_do_not_keep_the_others_from_their_turn() -> None:
    def breaks() -> Iterator[Figure]:
        yield Figure(what="a", value=1.0)
        raise torch.OutOfMemoryError("CUDA out of memory")

    lab = make_lab()
    figures = list(lab.attempts([("breaks", breaks), ("well", lambda: [Figure(what="b", value=2.0)])]))
    assert [figure.value for figure in figures] == [1.0, None, 2.0]
    assert "out of memory" in figures[1].error
    lab._until = time.time() - 1
    assert [figure.note for figure in lab.attempts([("late", breaks)])] == ["left out: no time was left"]


def test_a_graph_is_captured_after_a_warm_up_and_timed_by_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Stream:
        def wait_stream(self, other: Stream) -> None:
            log.append("wait")

    class Graph:
        def replay(self) -> None:
            log.append("replay")

        def reset(self) -> None:
            log.append("reset")

    class Event:
        ticks = itertools.count()

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")
            self.at = next(self.ticks)

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, other: Event) -> float:
            return 6.0 * (other.at - self.at)

    @contextmanager
    def within(name: str) -> Iterator[None]:
        log.append(f"{name} (")
        yield
        log.append(")")

    fake: dict[str, Callable[..., Any]] = {
        "Stream": Stream,
        "CUDAGraph": Graph,
        "Event": Event,
        "current_stream": Stream,
        "stream": lambda stream: within("aside"),
        "graph": lambda graph: within("capture"),
        "synchronize": lambda: None,
        "_sleep": lambda cycles: log.append("busy"),
    }
    for name, value in fake.items():
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(torch.cuda, name, value)
    calls = [lambda: log.append("call" if torch.is_inference_mode_enabled() else "as the engine does not")] * 3
    assert timing.GraphTimer().per_call(calls) == pytest.approx(0.002)  # six milliseconds, three calls
    three = ["call"] * 3
    assert log[:11] == ["wait", "aside (", *three, ")", "wait", "capture (", *three]
    assert log[11] == ")"
    timed = log.index("busy")
    assert set(log[12:timed]) == {"replay"}
    # the host launches each while the device is busy with something else
    assert log[timed:-1] == ["busy", "event", "replay", "event"] * ((len(log) - 1 - timed) // 4)
    assert log[-1] == "reset"


def test_copies_take_turns_until_the_cache_has_forgotten_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=60 << 20)
    )
    gpu = torch.device("cuda", 0)
    for size in (1 << 20, 100 << 20, 239 << 20):
        between = (timing.cold_copies(size, gpu) - 1) * size
        assert 240 << 20 <= between < (240 << 20) + size
    assert timing.cold_copies(240 << 20, gpu) == 1  # it pushes itself out
    assert timing.cold_copies(1000, gpu) == 512


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (5, 2.0)])
def test_attention_in_float64_is_the_references(window: int | None, softcap: float | None) -> None:
    torch.manual_seed(0)
    starts, counts = [0, 30], [3, 4]
    cache = Cache([3, 34], 2, 8, dtype=torch.float32, device=CPU, copies=2)
    assert torch.equal(cache.pools[0].view(torch.int32), cache.pools[1].view(torch.int32))
    assert cache.bytes_read == 37 * 2 * 16 * 4
    assert cache.pool.isnan().sum() == cache.pool.numel() - 37 * 2 * 16
    q = torch.randn(7, 6, 8)
    plan = reference.plan_extend(cache.tables, starts, counts, cache.pool, 6, window=window)
    exact = reference.extend(q.double(), cache.pool.double(), plan, 0.3, softcap=softcap)
    ours = [
        attention(part, cache.pool, table, start, 0.3, window=window, softcap=softcap)
        for part, table, start in zip(q.split(counts), cache.tables, starts, strict=True)
    ]
    torch.testing.assert_close(torch.cat(ours), exact)


def test_errors_are_relative_and_nan_must_be_where_it_ought_to() -> None:
    exact = torch.tensor([3.0, NAN, 4.0])
    assert relative_error(torch.tensor([3.0, NAN, 4.5]), exact) == pytest.approx(0.1)
    assert relative_error(torch.tensor([3.0, 1.0, 4.0]), exact) == float("inf")
    assert relative_error(torch.tensor([NAN, NAN, 4.0]), exact) == float("inf")
    with pytest.raises(WrongResult, match="shape"):
        relative_error(torch.zeros(2), exact)


def test_other_bits_in_a_second_call_are_a_race() -> None:
    lab, ones = make_lab(), torch.ones(3)
    assert compared(lab, "steady", lambda: [ones], [ones]).value == 0
    calls = itertools.count()
    with pytest.raises(WrongResult, match="a race"):
        compared(lab, "racy", lambda: [ones + 1e-6 * next(calls)], [ones])


def test_models_are_as_large_as_they_are_called() -> None:
    read = {name: weight_bytes_read(spec, 2) / 2 for name, spec in MODELS.items()}
    assert {name: round(values / 1e6) for name, values in read.items()} == {"135M": 135, "1B": 1236, "8B": 7505}
    # 32 layers of 8 heads of 128 numbers, keys and values: 131,072 bytes a token
    assert floor_bytes(MODELS["8B"], 64, 1024, 2) == weight_bytes_read(MODELS["8B"], 2) + 64 * 1024 * 131072


def test_steps_of_the_gpus_runner_are_timed_a_step_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, device = make_lab(), FakeDevice()
    spec = replace(lab.model("8B"), max_position=64)  # so that what is run to warm up is short
    steps = engine_decode._Steps(spec, 2, 20)
    lab.rehearsal = False
    given = partial(GpuRunner, device=device, kernels=fake_kernels(device))
    monkeypatch.setattr(gpu_runner, "GpuRunner", given)
    weights = on_device(weights_of(spec))
    runner = open_runner(lab, spec, tokens=2 * steps.tokens_each(20), rows=2, step_tokens=64, weights=weights)
    lab.rehearsal = True  # two steps are enough
    prefill = engine_decode._prefill(lab, "prefill", steps, runner, 2, 2)
    decode = engine_decode._decode(lab, "decode", steps, runner, 2, ahead=True)
    assert all(figure.value is not None and figure.value > 0 for figure in (prefill, decode))
    assert len(device.replayed) == 5  # all decode steps are recorded ones: three to warm up, and two that count
    runner.close()


def test_rows_have_blocks_of_their_own() -> None:
    steps = engine_decode._Steps(MODELS["8B"], 5, 100)
    rows = steps.prompts(0, 5)
    blocks = [block for row in rows for block in row.block_table]
    assert sorted(blocks) == list(range(len(blocks)))
    last = steps.decode(5, engine_decode._WARM_UP + engine_decode._MOST - 1, pending=False)
    assert all(row.start + 1 <= len(row.block_table) * BLOCK_SIZE for row in last)
    assert isinstance(Cache([3], 1, 8, dtype=torch.float32, device=CPU).tables[0], array)
