"""Compile every Triton kernel for every target, on a machine without a GPU, and check what came out.

Each module of Triton kernels says in ``aot_cases()`` how its kernels are launched for the models that we know. A
case is compiled with the types, alignments and block sizes of a launch, so that what is checked here is what a GPU
would run: that it compiles, fits into shared memory, spills no registers, and has the instructions that make it
fast. Whether it is correct is not seen; the interpreter and a GPU tell (see the tests).

``python -m orchestra.kernels.aot --help`` tells of the command.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from orchestra.kernels.launch import LaunchConfig, launch_config

__all__ = [
    "MODELS",
    "NO_FLOAT8",
    "TARGETS",
    "AotCase",
    "AotUnavailableError",
    "Compiled",
    "ModelShape",
    "Target",
    "all_cases",
    "compile_case",
    "faults",
    "launches",
    "main",
    "triton_modules",
]

KB = 1024


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU architecture, and how much shared memory one program may have there, in bytes."""

    backend: str
    arch: int | str
    warp_size: int
    shared: int


# CUDA C++ Programming Guide, technical specifications; LDS of CDNA 3. Triton compiles 90 as 90a, and so on.
TARGETS: Mapping[str, Target] = {
    "sm_80": Target("cuda", 80, 32, 163 * KB),
    "sm_90": Target("cuda", 90, 32, 227 * KB),
    "sm_100": Target("cuda", 100, 32, 227 * KB),
    "sm_120": Target("cuda", 120, 32, 99 * KB),
    "gfx942": Target("hip", "gfx942", 64, 64 * KB),
}

NO_FLOAT8 = frozenset({"sm_80"})  # targets for which Triton compiles no e4m3
_EVERY_CUDA = frozenset({"sm_80", "sm_90", "sm_100", "sm_120"})
# What a case may ask for: how it looks in PTX, and the targets that have it. Elsewhere it is not looked for.
_INSTRUCTIONS: Mapping[str, tuple[str, frozenset[str]]] = {
    "wgmma": (r"\bwgmma\.mma_async\b", frozenset({"sm_90"})),
    "tcgen05": (r"\btcgen05\.mma\b", frozenset({"sm_100"})),
    "mma": (r"\bmma\.sync\b", _EVERY_CUDA),
    "cp.async": (r"\bcp\.async\b", _EVERY_CUDA),
    "16-byte loads": (r"\bld\.global[\w.:]*\.v(4\.[bfu]32|8\.[bfu]32|2\.[bfu]64|4\.[bfu]64)\b", _EVERY_CUDA),
    "16-byte stores": (r"\bst\.global[\w.:]*\.v(4\.[bfu]32|8\.[bfu]32|2\.[bfu]64|4\.[bfu]64)\b", _EVERY_CUDA),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The numbers of a model that its kernels are compiled for."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    mlp: int
    vocab: int


# SmolLM2 135M, Llama 3.2 1B, Llama 3 8B; then one whose heads share no keys, one of a head that fills no tile, and
# Gemma 2 2B, whose heads are the largest.
MODELS = (
    ModelShape(name="135M", heads=9, kv_heads=3, head_dim=64, hidden=576, mlp=1536, vocab=49152),
    ModelShape(name="1B", heads=32, kv_heads=8, head_dim=64, hidden=2048, mlp=8192, vocab=128256),
    ModelShape(name="8B", heads=32, kv_heads=8, head_dim=128, hidden=4096, mlp=14336, vocab=128256),
    ModelShape(name="group 1", heads=32, kv_heads=32, head_dim=128, hidden=4096, mlp=11008, vocab=32000),
    ModelShape(name="head 80", heads=32, kv_heads=32, head_dim=80, hidden=2560, mlp=10240, vocab=51200),
    ModelShape(name="head 256", heads=8, kv_heads=4, head_dim=256, hidden=2304, mlp=9216, vocab=256000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AotCase:
    """One kernel, as one model's shapes have it launched."""

    name: str
    """Operation, shape and type, as ``attention.decode head=64 group=3 bf16``. Cases may share a name where no
    target has two of them: their figures stand in one row."""
    kernel: Any
    """What ``@triton.jit`` made."""
    signature: Mapping[str, str]
    """Every argument's type in the kernel's order: ``*bf16``, ``i32``, ``fp32``, ``constexpr``, ..."""
    constexprs: Mapping[str, object]
    """The values of those whose type is ``constexpr``."""
    aligned: frozenset[str]
    """Pointers and numbers that are divisible by 16: a launch sees it in its arguments, and loads are wider."""
    num_warps: int = 4
    num_stages: int = 2
    asked: frozenset[str] = frozenset()
    """Instructions that it must have on the targets that know them: ``wgmma``, ``tcgen05``, ``mma``, ``cp.async``,
    ``16-byte loads``, ``16-byte stores``."""
    absent: frozenset[str] = frozenset()
    """Targets that it is not compiled for."""
    quick: bool = False
    """Whether it is of the few that `make test` compiles."""

    def __post_init__(self) -> None:
        constexprs = {name for name, kind in self.signature.items() if kind == "constexpr"}
        for fault, names in (
            ("constexprs in the signature or among the values alone", constexprs ^ set(self.constexprs)),
            ("aligned arguments that the signature does not know", self.aligned - set(self.signature)),
            ("instructions that cannot be asked for", self.asked - set(_INSTRUCTIONS)),
            ("absent targets that are not known", self.absent - set(TARGETS)),
        ):
            if names:
                raise ValueError(f"{self.name}: {fault}: {', '.join(sorted(names))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What became of a case on a target."""

    shared: int
    """Bytes of shared memory of a program."""
    registers: int
    """Registers of a thread (on AMD: vector registers, those that accumulate included)."""
    spills: int
    """Bytes of a thread's registers that did not fit and lie in memory."""
    instructions: frozenset[str]
    """Which of those that can be asked for it has."""


class AotUnavailableError(RuntimeError):
    """Nothing can be compiled here; the message says why, and what to do."""


def launches(
    op: str, without: frozenset[str] = frozenset(), /, **shape: int
) -> Iterator[tuple[LaunchConfig, frozenset[str]]]:
    """Yield each launch setting of ``op`` for a shape, with the targets that have another (`AotCase.absent`).

    Targets ``without`` the kernel have none.
    """
    by_target = {target: launch_config(op, target, **shape) for target in TARGETS if target not in without}
    seen: list[LaunchConfig] = []
    for config in by_target.values():
        if config not in seen:
            seen.append(config)
            yield config, frozenset(target for target in TARGETS if by_target.get(target) != config)


def triton_modules() -> list[str]:
    """Return the names of the modules that hold Triton kernels: ``triton_*.py`` in the operations' folders."""
    root = Path(__file__).parent
    paths = (path.relative_to(root).with_suffix("") for path in root.glob("*/triton_*.py"))
    return sorted(".".join(("orchestra.kernels", *path.parts)) for path in paths)


@functools.cache
def all_cases() -> tuple[AotCase, ...]:
    """Return the cases of all modules. Raises ValueError where two of one name are for the same target."""
    cases: list[AotCase] = []
    for name in triton_modules():
        module = importlib.import_module(name)
        for case in getattr(module, "aot_cases", tuple)():  # without kernels, only what they call, there is none
            if case not in cases:  # a module that joins others may show their cases again
                cases.append(case)
    taken: set[tuple[str, str]] = set()
    for case in cases:
        for target in TARGETS.keys() - case.absent:
            if (case.name, target) in taken:
                raise ValueError(f"two cases are named {case.name!r} for {target}")
            taken.add((case.name, target))
    return tuple(cases)


def compile_case(case: AotCase, target: str) -> Compiled:
    """Compile ``case`` for ``target``, a name of `TARGETS`. Needs Triton, and no GPU.

    Whatever Triton raises where a kernel cannot be compiled is raised here. Raises `AotUnavailableError` without
    Triton, or where it interprets kernels.
    """
    _check_triton()
    from triton import compile as triton_compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(case.kernel.arg_names)
    if names != list(case.signature):
        raise ValueError(f"{case.name}: the kernel's arguments are {names}, and the signature's are others")
    source = ASTSource(
        fn=case.kernel,
        signature=dict(case.signature),
        constexprs=dict(case.constexprs),
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in sorted(case.aligned)},
    )
    chip = TARGETS[target]
    # the target is given, so that Triton asks no driver for one
    kernel = triton_compile(
        source,
        target=GPUTarget(chip.backend, chip.arch, chip.warp_size),
        options=dict(LaunchConfig(num_warps=case.num_warps, num_stages=case.num_stages).options),
    )
    if chip.backend == "hip":
        registers, spills = _amd_resources(kernel.asm["amdgcn"])
    else:
        registers, spills = _cuda_resources(kernel.asm["cubin"])
    ptx = kernel.asm.get("ptx", "")
    found = frozenset(name for name, (pattern, _) in _INSTRUCTIONS.items() if re.search(pattern, ptx))
    return Compiled(shared=kernel.metadata.shared, registers=registers, spills=spills, instructions=found)


def faults(case: AotCase, target: str, compiled: Compiled) -> list[str]:
    """Return what is wrong with a compiled case: sentences, none where all is well."""
    found = []
    limit = TARGETS[target].shared
    if compiled.shared > limit:
        found.append(f"wants {compiled.shared:,} bytes of shared memory, and there are {limit:,}")
    if compiled.spills:
        found.append(f"spills {compiled.spills} bytes of registers a thread")
    for name in sorted(case.asked - compiled.instructions):
        if target in _INSTRUCTIONS[name][1]:
            found.append(f"has no {name}")
    return found


def _check_triton() -> None:
    if importlib.util.find_spec("triton") is None:
        raise AotUnavailableError("Triton is not installed: pip install 'triton>=3.9,<3.10' (Linux only)")
    from triton import knobs

    if knobs.runtime.interpret:
        raise AotUnavailableError("TRITON_INTERPRET is set, so kernels are interpreted: unset it to compile them")


def _cuda_resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and its bytes of local memory, which our kernels have for nothing but spills."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    numbers = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    return numbers["REG"], numbers["STACK"] + numbers["LOCAL"]


def _amd_resources(assembly: str) -> tuple[int, int]:
    """The same from the metadata at the end of an assembly file; there, ``.vgpr_count`` counts all of them."""
    numbers = {name: int(number) for name, number in re.findall(r"^\s*\.(\w+):\s+(\d+)\s*$", assembly, re.M)}
    return numbers["vgpr_count"], numbers["private_segment_fixed_size"]


def _attempt(index: int, target: str) -> Compiled | str:
    """Compile a case by its place among all, which another process can do; the error's text where it fails."""
    try:
        return compile_case(all_cases()[index], target)
    except AotUnavailableError:
        raise
    except Exception as error:  # whatever the compiler throws is a finding
        return f"does not compile: {type(error).__name__}: {error}"


def _run(work: Sequence[tuple[int, str]], jobs: int) -> Iterator[tuple[int, str, Compiled | str]]:
    """Yield the results of ``work``, pairs of a case's place and a target, as they come."""
    if jobs == 1:
        for index, target in work:
            yield index, target, _attempt(index, target)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(_attempt, *piece): piece for piece in work}
        for future in as_completed(futures):
            yield *futures[future], future.result()


def _figures(compiled: Compiled) -> str:
    tenths = -(-compiled.shared * 10 // KB)  # rounded up: a little is not nothing
    return f"{tenths / 10} / {compiled.registers} / {compiled.spills}"


def _table(cases: Iterable[AotCase], targets: Sequence[str], cells: Mapping[tuple[str, str], str]) -> str:
    lines = [f"| kernel | {' | '.join(targets)} |", "|---|" + "---:|" * len(targets)]
    for name in dict.fromkeys(case.name for case in cases):
        row = (name, *(cells.get((name, target), "") for target in targets))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


_PLACE = re.compile(r"(<!-- AOT TABLE[^\n]*-->\n).*?(<!-- END OF AOT TABLE -->)", re.S)


def _write(path: Path, table: str) -> None:
    """Put ``table`` into its place in a document."""
    text = path.read_text(encoding="utf-8")
    path.write_text(_PLACE.sub(lambda match: f"{match[1]}\n{table}\n\n{match[2]}", text), encoding="utf-8")


_HELP = """\
Compile the Triton kernels ahead of time, for every target, on a machine without a GPU.

Prints a line for each kernel and target as it is compiled, then a table: kilobytes of shared
memory a program / registers a thread / bytes spilled a thread. Ends with 1, and says why, where
one does not compile, asks for more shared memory than there is, spills, or lacks an instruction
that it was to have (as wgmma on Hopper). Triton's cache makes a second run quick; set
TRITON_CACHE_DIR to an empty folder to compile all anew.
"""

_EXAMPLES = """\
examples:
  python -m orchestra.kernels.aot --quick                         what `make test` compiles
  python -m orchestra.kernels.aot --target sm_90 --only extend    one operation, for Hopper
  python -m orchestra.kernels.aot --write kernels/README.md       all, the table into a document
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m orchestra.kernels.aot",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="only the few that stand for the others")
    parser.add_argument("--target", action="append", choices=TARGETS, help="only for this one; may be repeated")
    parser.add_argument("--only", metavar="TEXT", default="", help="only kernels whose name has this in it")
    parser.add_argument("--write", metavar="FILE", type=Path, help="put the table between the marks of a document")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    options = parser.parse_args(arguments)
    if options.write:
        if options.quick or options.target or options.only:
            parser.error("--write wants the whole table: leave --quick, --target and --only away")
        if not options.write.is_file() or not _PLACE.search(options.write.read_text(encoding="utf-8")):
            parser.error(f"{options.write} has no place for it: <!-- AOT TABLE --> to <!-- END OF AOT TABLE -->")
    try:
        _check_triton()
    except AotUnavailableError as unavailable:
        print(unavailable, file=sys.stderr)
        return 2
    targets = [target for target in TARGETS if not options.target or target in options.target]
    cases = all_cases()
    chosen = [i for i, case in enumerate(cases) if options.only in case.name and (case.quick or not options.quick)]
    work = [(i, target) for i in chosen for target in targets if target not in cases[i].absent]
    if not work:
        parser.error("no kernel answers to that")
    cells: dict[tuple[str, str], str] = {}
    wrong: list[str] = []
    for done, (index, target, result) in enumerate(_run(work, options.jobs), start=1):
        case = cases[index]
        found = [result] if isinstance(result, str) else faults(case, target, result)
        wrong += (f"{case.name} on {target} {fault}" for fault in found)
        cells[case.name, target] = "failed" if isinstance(result, str) else _figures(result)
        verdict = "; ".join(found) or cells[case.name, target]
        print(f"[{done:>3}/{len(work)}] {target:<6} {case.name}: {verdict}", flush=True)
    table = _table([cases[i] for i in chosen], targets, cells)
    print(f"\nshared memory in KB / registers / bytes spilled\n\n{table}\n")
    for fault in wrong:
        print(f"FAILED: {fault}", file=sys.stderr)
    if wrong:
        return 1
    print(f"All {len(work)} compiled, within the limits of their targets.")
    if options.write:
        _write(options.write, table)
        print(f"The table is in {options.write}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
