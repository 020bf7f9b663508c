"""How launches are tuned: with a clock of ours, and kernels interpreted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orchestra.kernels import tune
from orchestra.kernels.launch import TABLE, TABLE_FILE, launch_config
from orchestra.kernels.launch_table import LaunchConfig, LaunchRow, read_table
from orchestra.kernels.tuning import cases
from orchestra.kernels.tuning.cases import TuningCase, tuning_cases
from orchestra.kernels.tuning.search import Problem, Trial, best, tried, tuned_rows

CPU = torch.device("cpu")
LAUNCHES = [LaunchConfig(num_warps=warps, num_stages=1) for warps in (1, 2, 4, 8)]


class Clock:
    """Says what it was given, call by call, and then one second."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = iter(seconds)
        self.calls = 0

    def seconds(self, call: Callable[[], object]) -> float:
        call()
        self.calls += 1
        return next(self._seconds, 1.0)


def bench(clock: Clock) -> tune.Bench:
    return tune.Bench(device=CPU, arch="interpreter", gpu="a rehearsal", timer=clock)


def small(case: TuningCase) -> TuningCase:
    """The case with a few of its launches, on one row or run of a few tokens."""
    size = {"attention.decode": (1, 40), "attention.extend": (1, 20, 5)}.get(case.op, (1,))
    return replace(case, candidates=case.candidates[:1] + case.candidates[-1:], checked=size, timed=(size,))


FIRST = {case.op: case for case in reversed(list(tuning_cases()))}


@pytest.mark.parametrize("op", sorted(FIRST.keys() - {"sampling"}))  # whose vocabularies are too many tiles here
def test_what_the_reference_agrees_with_is_timed(op: str) -> None:
    clock, table = Clock(3.0, 1.0, 2.0), dict(TABLE)
    table[op] = dict(table[op])
    lines = list(tune.tune(table, [small(FIRST[op])], bench(clock)))
    assert clock.calls == 3, lines  # the launch of the table, and two candidates
    row, rest = table[op]["interpreter"]
    assert (row.config, row.tuned) == (FIRST[op].candidates[0], "a rehearsal")
    assert row.up_to == FIRST[op].shape
    assert rest.up_to == {}
    assert rest.config == (TABLE[op].get("interpreter") or TABLE[op]["any"])[-1].config


def problem(results: Iterator[torch.Tensor]) -> Problem:
    return Problem(
        name="some",
        prepare=lambda: lambda: next(results),
        expected=lambda: torch.ones(2, dtype=torch.float64),
        tolerance=1e-3,
    )


def test_what_is_wrong_is_never_timed() -> None:
    def results() -> Iterator[torch.Tensor]:
        yield torch.tensor([1.0, 1.1])
        yield torch.tensor([1.0, float("nan")])
        yield torch.ones(3)
        yield torch.ones(2)

    clock, one = Clock(), problem(results())
    timed = Problem(name="timed", prepare=lambda: lambda: torch.ones(1), expected=one.expected, tolerance=0.0)
    trials = list(tried("norm", LAUNCHES, one, [timed], clock))
    assert [trial.failed for trial in trials] == [
        "differs from the reference by 0.1",
        "differs from the reference by nan",
        "has shape [3], not [2]",
        None,
    ]
    assert clock.calls == 1


def test_a_launch_that_fails_is_passed_over_and_each_is_in_force_when_it_is_tried() -> None:
    seen = []

    def prepare() -> Callable[[], torch.Tensor]:
        config = launch_config("norm", "sm_90", hidden=64)
        seen.append(config)
        if config.num_warps == 2:
            raise RuntimeError("out of resource:\n shared memory")
        return lambda: torch.ones(2)

    one = Problem(name="some", prepare=prepare, expected=lambda: torch.ones(2, dtype=torch.float64), tolerance=0.0)
    trials = list(tried("norm", LAUNCHES, one, [], Clock()))
    assert seen == LAUNCHES
    assert [trial.failed for trial in trials] == [None, "RuntimeError: out of resource: shared memory", None, None]
    assert launch_config("norm", "sm_90", hidden=64).num_warps == 2


def test_the_least_mean_wins_unless_the_gain_is_noise() -> None:
    now = Trial(config=LAUNCHES[0], seconds=(1.0, 4.0))
    slightly = Trial(config=LAUNCHES[1], seconds=(0.995, 4.0))
    faster = Trial(config=LAUNCHES[2], seconds=(3.0, 1.0))  # of all problems together, though not of the first
    broken = Trial(config=LAUNCHES[3], failed="does not compile")
    assert best([now, slightly, broken], LAUNCHES[0]) is now
    assert best([now, slightly, faster], LAUNCHES[0]) is faster
    assert best([now, slightly, broken], LAUNCHES[3]) is slightly
    assert best([broken], LAUNCHES[3]) is None


def test_rows_go_from_small_to_large() -> None:
    rest = LaunchRow(up_to={}, config=LAUNCHES[3])
    shapes = [{"key_bytes": keys, "head_dim": head} for keys in (2, 1) for head in (128, 64)]
    rows = tuned_rows([(shape, LAUNCHES[0]) for shape in shapes], rest, "some GPU")
    assert [tuple(row.up_to.values()) for row in rows] == [(1, 64), (1, 128), (2, 64), (2, 128), ()]
    assert [row.tuned for row in rows] == ["some GPU"] * 4 + [None]


@pytest.fixture
def norms_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [small(case) for case in tuning_cases() if case.op == "norm"]
    monkeypatch.setattr(tune, "tuning_cases", lambda: few)


@pytest.mark.usefixtures("norms_alone")
def test_the_command_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "launch.json"
    assert tune.main(["--out", str(out)], bench=bench(Clock(2.0, 1.0, 3.0))) == 0
    printed = capsys.readouterr().out
    assert "norm hidden=1024: 3 launches, 1 rows\n  warps=2 stages=1: 2000000.0 us\n" in printed
    assert "  kept: warps=1 stages=1\n" in printed
    table = read_table(out.read_text(encoding="utf-8"))
    rows = table["norm"]["interpreter"]
    assert [row.config.num_warps for row in rows[:2]] == [1, launch_config("norm", "sm_90", hidden=2048).num_warps]
    assert {op: rows for op, rows in table.items() if op != "norm"} == {
        op: rows for op, rows in read_table(TABLE_FILE.read_text(encoding="utf-8")).items() if op != "norm"
    }
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.usefixtures("norms_alone")
def test_where_nothing_is_right_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from orchestra.kernels.norm import reference

    monkeypatch.setattr(reference, "rms_norm", lambda x, weight, eps: torch.zeros_like(x))
    assert tune.main(["--out", str(tmp_path / "launch.json")], bench=bench(Clock())) == 1
    captured = capsys.readouterr()
    assert captured.out.count("none is right") == 4
    assert "Nothing could be tuned" in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune.main([]) == 2
    assert capsys.readouterr().err.startswith("there is no GPU here")


def test_a_gpu_that_goes_by_anothers_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "arch_of", lambda device: "sm_120")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    with pytest.raises(ValueError, match="NVIDIA L4 is sm_89 and goes by the rows of sm_120"):
        tune.Bench.of(torch.device("cuda", 0))


def test_every_case_is_compiled_as_a_kernel_that_there_is() -> None:
    from orchestra.kernels.aot import all_cases

    names = {case.name for case in all_cases()}
    assert {case.compiled for case in tuning_cases()} <= names
    assert {case.op for case in tuning_cases()} == set(TABLE) == set(cases.OPERATIONS)
