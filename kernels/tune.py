"""Tune the launches of the Triton kernels on a GPU, and write them into the table, `launch.json`.

Each operation is timed for the shapes of models that we know, with every launch that may be good there. A launch
is first checked against the reference, on a small problem. What is written is data, which the kernels then go by
in every process: nothing is tuned where a model is served.

``python -m orchestra.kernels.tune --help`` tells of the command.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from orchestra.kernels.aot import TARGETS, AotUnavailableError, all_cases, compile_case, faults
from orchestra.kernels.launch import TABLE_FILE, arch_of, launch_config
from orchestra.kernels.launch_table import ANY, LaunchConfig, LaunchTable, read_table, written_table
from orchestra.kernels.tuning.cases import OPERATIONS, TuningCase, tuning_cases
from orchestra.kernels.tuning.search import best, told, tried, tuned_rows
from orchestra.kernels.tuning.timer import GraphTimer, Timer

__all__ = ["Bench", "main", "tune"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where launches are tried: a device, the rows of the table that are its own, its name, and the clock."""

    device: torch.device
    arch: str
    gpu: str
    timer: Timer

    @classmethod
    def of(cls, device: torch.device) -> Bench:
        """That of a GPU. Raises ValueError for one that goes by the rows of another architecture."""
        arch, gpu = arch_of(device), torch.cuda.get_device_name(device)
        if torch.version.hip is not None:
            own = torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
        else:
            own = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
        if own != arch:
            raise ValueError(
                f"{gpu} is {own} and goes by the rows of {arch}, which are to be tuned on one of those"
            )
        return cls(device=device, arch=arch, gpu=gpu, timer=GraphTimer(device))


def tune(table: LaunchTable, cases: Sequence[TuningCase], bench: Bench) -> Iterator[str]:
    """Try what the ``cases`` have, put the best into ``table``, and yield what happens, a line at a time.

    An operation's rows for the architecture are replaced, as a whole, by those of its shapes that could be tuned;
    its last row stays, for shapes beyond. Where none could, all stay.
    """
    for op in dict.fromkeys(case.op for case in cases):
        chosen: list[tuple[Mapping[str, int], LaunchConfig]] = []
        for case in cases:
            if case.op == op:
                kept = yield from _tune_case(case, bench)
                if kept is not None:
                    chosen.append((case.shape, kept))
        if chosen:
            rows = table[op].get(bench.arch) or table[op][ANY]
            table[op][bench.arch] = tuned_rows(chosen, rows[-1], bench.gpu)


def _tune_case(case: TuningCase, bench: Bench) -> Generator[str, None, LaunchConfig | None]:
    """Yield what happens; return the launch to keep, or None."""
    now = launch_config(case.op, bench.arch, **case.shape)
    candidates = (now, *(one for one in case.candidates if one != now))
    try:
        checked = case.problem(bench.device, case.checked)
        timed = [case.problem(bench.device, size) for size in case.timed]
    except (ValueError, torch.OutOfMemoryError) as error:  # no such type on this device, or too little memory
        yield f"{_name(case)}: left out: {error}"
        return None
    yield f"{_name(case)}: {len(candidates)} launches, {' and '.join(problem.name for problem in timed)}"
    trials = []
    for one in tried(case.op, candidates, checked, timed, bench.timer):
        trials.append(one)
        figures = one.failed or ", ".join(f"{seconds * 1e6:.1f} us" for seconds in one.seconds)
        yield f"  {told(one.config)}: {figures}"
    winner = best(trials, now)
    if winner is None:
        yield "  none is right: nothing is changed"
        return None
    yield f"  kept: {told(winner.config)}{' (as before)' if winner.config == now else ''}"
    return winner.config


def _name(case: TuningCase) -> str:
    return f"{case.op} {' '.join(f'{name}={number}' for name, number in case.shape.items())}"


def _compiled(cases: Sequence[TuningCase], target: str) -> Iterator[tuple[str, bool]]:
    """What becomes of each candidate when it is compiled ahead of time, and whether it compiles at all."""
    for case in cases:
        base = next((one for one in all_cases() if one.name == case.compiled and target not in one.absent), None)
        if base is None:
            yield f"{_name(case)}: is not for {target}", True
            continue
        for config in case.candidates:
            launch = replace(
                base,
                constexprs={**base.constexprs, **config.blocks},
                num_warps=config.num_warps,
                num_stages=config.num_stages,
                asked=frozenset(),
            )
            try:
                wrong = faults(launch, target, compile_case(launch, target))
            except AotUnavailableError:
                raise
            except Exception as error:  # whatever the compiler throws is a finding
                yield f"{_name(case)} {told(config)}: {type(error).__name__}: {error}", False
            else:
                yield f"{_name(case)} {told(config)}: {'; '.join(wrong) or 'fits'}", True


_HELP = """\
Tune how the Triton kernels are launched on the GPU here: block sizes, warps, stages.

Every launch that may be good is checked against the reference on a small problem, and then timed
by replaying a CUDA graph, with the L2 cache flushed before each replay; medians of 20 count. The
one with the least geometric mean over an operation's problems is kept, if it is faster than the
present one by a percent. The table (kernels/launch.json) is rewritten at the end: the operations
that were tuned get new rows for this GPU's architecture, with its name in them. Minutes an
operation, most of them compiling; a second run finds the kernels in Triton's cache.
"""

_EXAMPLES = """\
examples:
  python -m orchestra.kernels.tune                               all operations on the first GPU
  python -m orchestra.kernels.tune --only attention.decode       one of them
  python -m orchestra.kernels.tune --out my-launch.json          leave the table as it is
  python -m orchestra.kernels.tune --compile sm_90 --only norm   no GPU: which candidates compile and fit

Run `make kernels-aot` afterwards: it checks that what was chosen fits, and renews the README's table.
Exits with 1 where nothing could be tuned or a candidate does not compile, with 2 without a GPU.
"""


def main(arguments: Sequence[str] | None = None, *, bench: Bench | None = None) -> int:
    """Run the command; return its exit status. A ``bench`` stands for the GPU."""
    parser = argparse.ArgumentParser(
        prog="python -m orchestra.kernels.tune",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", choices=OPERATIONS, help="only this operation; may be repeated")
    parser.add_argument("--device", default="cuda:0", help="the GPU (default: cuda:0)")
    parser.add_argument("--out", type=Path, default=TABLE_FILE, metavar="FILE", help="where the table is written")
    parser.add_argument(
        "--compile", choices=TARGETS, metavar="TARGET", help="compile the candidates, without a GPU"
    )
    options = parser.parse_args(arguments)
    cases = [case for case in tuning_cases() if not options.only or case.op in options.only]
    try:
        if options.compile:
            broken = 0
            for line, compiles in _compiled(cases, options.compile):
                broken += not compiles
                print(line, flush=True)
            return 1 if broken else 0
        bench = bench or _gpu(options.device)
    except (ValueError, AotUnavailableError) as unavailable:
        print(unavailable, file=sys.stderr)
        return 2
    table = read_table(TABLE_FILE.read_text(encoding="utf-8"))
    before = written_table(table)
    for line in tune(table, cases, bench):
        print(line, flush=True)
    if written_table(table) == before:
        print("Nothing could be tuned: the table is as it was.", file=sys.stderr)
        return 1
    _replace(options.out, written_table(table))
    print(f"The rows of {bench.arch} are in {options.out}.")
    return 0


def _gpu(name: str) -> Bench:
    if not torch.cuda.is_available():
        raise ValueError("there is no GPU here: launches are tuned where they are timed (--compile needs none)")
    return Bench.of(torch.device(name))


def _replace(path: Path, text: str) -> None:
    """Write all or nothing."""
    aside = path.with_name(f".{path.name}.new")
    try:
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()


if __name__ == "__main__":
    sys.exit(main())
