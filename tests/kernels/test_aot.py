"""The kernels compile without a GPU: in a process of its own, since tests/kernels/triton interprets them here."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestra.kernels import aot
from orchestra.kernels.aot import TARGETS, AotCase, Compiled, faults, launches

KERNELS = Path(aot.__file__).parent
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def case(**changes: object) -> AotCase:
    given = {"name": "some", "kernel": None, "signature": {"x": "*bf16"}, "constexprs": {}, "aligned": frozenset()}
    return AotCase(**{**given, **changes})  # type: ignore[arg-type]


def compiled(**changes: object) -> Compiled:
    given = {"shared": 0, "registers": 32, "spills": 0, "instructions": frozenset()}
    return Compiled(**{**given, **changes})  # type: ignore[arg-type]


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "orchestra.kernels.aot", *arguments]
    return subprocess.run(line, env=os.environ | environment, capture_output=True, text=True)


@needs_triton
@pytest.mark.timeout(600)
def test_kernels_compile_within_the_limits_of_their_targets(tmp_path: Path) -> None:
    """A few of them, for the two that differ most; `make kernels-aot` is all, for all."""
    targets = ("--target", "sm_90", "--target", "gfx942")
    done = command("--quick", "--jobs", "1", *targets, TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    for operation in ("rms_norm", "silu_mul", "rope_kv"):
        assert f"{operation} " in done.stdout
    assert "Warning" not in done.stderr  # of defaults that are to change, for one


@needs_triton
def test_launches_that_are_tried_when_tuning_compile(tmp_path: Path) -> None:
    """The first and the last of two cases; `python -m orchestra.kernels.tune --compile sm_90` is all of them."""
    program = """if True:
        import sys
        from dataclasses import replace
        from orchestra.kernels import tune
        first = {case.op: case for case in reversed(list(tune.tuning_cases()))}
        few = [replace(first[op], candidates=first[op].candidates[::14]) for op in ("rope_kv", "norm")]
        tune.tuning_cases = lambda: few
        sys.exit(tune.main(["--compile", "sm_90"]))
    """
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "rope_kv head_dim=64 HEADS=1 warps=1 stages=1: fits",
            "rope_kv head_dim=64 HEADS=16 warps=4 stages=1: fits",
            "norm hidden=1024 warps=1 stages=1: fits",
        ],
    ), done.stderr


@needs_triton
def test_it_says_so_where_kernels_are_interpreted() -> None:
    done = command("--quick", TRITON_INTERPRET="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("TRITON_INTERPRET is set")


def test_it_says_so_where_triton_is_missing() -> None:
    program = "import sys; sys.modules['triton'] = None; from orchestra.kernels import aot; sys.exit(aot.main([]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Triton is not installed: pip install 'triton>=3.9,<3.10' (Linux only)\n"


def test_a_part_of_the_table_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        aot.main(["--quick", "--write", "README.md"])
    assert ended.value.code == 2
    assert "--write wants the whole table" in capsys.readouterr().err


@pytest.mark.parametrize(("target", "kilobytes"), [("sm_80", 163), ("sm_90", 227), ("sm_120", 99), ("gfx942", 64)])
def test_more_shared_memory_than_a_target_has_is_a_fault(target: str, kilobytes: int) -> None:
    limit = kilobytes * 1024
    assert faults(case(), target, compiled(shared=limit)) == []
    assert faults(case(), target, compiled(shared=limit + 1)) == [
        f"wants {limit + 1:,} bytes of shared memory, and there are {limit:,}"
    ]


def test_a_spill_is_a_fault() -> None:
    assert faults(case(), "sm_90", compiled(spills=8)) == ["spills 8 bytes of registers a thread"]


def test_an_instruction_is_missed_where_the_target_has_it() -> None:
    asks = case(asked=frozenset({"wgmma"}))
    assert faults(asks, "sm_90", compiled()) == ["has no wgmma"]
    assert faults(asks, "sm_90", compiled(instructions=frozenset({"wgmma", "mma"}))) == []
    assert [target for target in TARGETS if faults(asks, target, compiled())] == ["sm_90"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"constexprs": {"x": 1}}, "constexprs .*: x"),
        ({"signature": {"x": "constexpr"}}, "constexprs .*: x"),
        ({"aligned": frozenset({"y"})}, "aligned .*: y"),
        ({"asked": frozenset({"speed"})}, "instructions .*: speed"),
        ({"absent": frozenset({"sm_70"})}, "absent targets .*: sm_70"),
    ],
)
def test_a_case_that_contradicts_itself_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"some: {message}"):
        case(**changes)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Let a module with the given cases be all that there is."""

    def are(*cases: AotCase) -> None:
        monkeypatch.setattr(aot, "triton_modules", lambda: ["some_module"])
        monkeypatch.setitem(sys.modules, "some_module", SimpleNamespace(aot_cases=lambda: cases))
        aot.all_cases.cache_clear()

    yield are
    aot.all_cases.cache_clear()


def test_two_cases_of_a_name_are_for_different_targets(modules: Callable[..., None]) -> None:
    hopper = case(absent=frozenset(TARGETS) - {"sm_90"})
    others = case(absent=frozenset({"sm_90"}), num_warps=8)
    modules(hopper, others, hopper)  # the last is the first, shown again
    assert aot.all_cases() == (hopper, others)
    modules(hopper, case())
    with pytest.raises(ValueError, match="two cases are named 'some' for sm_90"):
        aot.all_cases()


def test_each_target_is_launched_once() -> None:
    for op, shape in (("attention.decode", {"head_dim": 64, "key_bytes": 2}), ("norm", {"hidden": 576})):
        covered = [target for _, absent in launches(op, **shape) for target in TARGETS if target not in absent]
        assert sorted(covered) == sorted(TARGETS)


def test_masked_loads_say_what_they_read_elsewhere() -> None:
    """The interpreter reads 0 behind a mask, a GPU whatever the register held."""
    silent = []
    for path in KERNELS.glob("*/triton_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.load":
                named = {keyword.arg for keyword in node.keywords}
                if (len(node.args) > 1 or "mask" in named) and "other" not in named:
                    silent.append(f"{path.relative_to(KERNELS)}:{node.lineno}")
    assert silent == []


def test_kernels_are_launched_on_the_device_of_their_tensors() -> None:
    """Triton launches on the current device, which on a machine with several need not be it."""
    guarded: set[tuple[Path, int]] = set()
    launched: list[tuple[Path, int]] = []
    for path in KERNELS.glob("*/triton_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.With) and ast.unparse(node.items[0]).startswith("on_device_of("):
                guarded |= {(path, inner.lineno) for inner in ast.walk(node) if isinstance(inner, ast.Call)}
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                launched.append((path, node.lineno))
    assert len(launched) > 10
    assert set(launched) - guarded == set()


def test_triton_is_imported_by_its_own_modules_alone() -> None:
    """It is no part of what an engine on a CPU needs."""
    wrong = []
    for path in KERNELS.rglob("*.py"):
        if path.name.startswith("triton_"):
            continue
        for node in ast.parse(
            path.read_text(encoding="utf-8")
        ).body:  # what stands in a function is imported on use
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [f"{getattr(node, 'module', '')}.{alias.name}" for alias in node.names]
                parts = {part for name in names for part in name.split(".")}
                wrong += [f"{path.relative_to(KERNELS)}:{node.lineno}"] * any(
                    p.startswith("triton") for p in parts
                )
    assert wrong == []
