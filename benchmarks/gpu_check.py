"""Kernels and engine on a CUDA GPU: whether they are right, and how near they come to what the device can do.

    python benchmarks/gpu_check.py                               # everything; less than five minutes
    python benchmarks/gpu_check.py --only correctness --only decode-attention
    python benchmarks/gpu_check.py --rehearse                    # on a CPU: that it runs; measures nothing

It needs torch, Triton and numpy beside our core dependencies, and no network: weights are random, in the shapes of
models of 135M, 1B and 8B parameters. Each section runs in a process of its own for its share of the time. What
does not fit the device's memory or the time is left out, and said. Where a section fails, a line has the error,
and the others run.

One table goes to standard output, and everything in it as JSON to a file. Ends with 0 where every section ran and
every target that was measured is met, with 1 where not, and with 2 where there is no CUDA GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve()
if importlib.util.find_spec("orchestra") is None:  # straight from a checkout
    sys.path.insert(0, str(_HERE.parents[1]))

from gpu.figures import Figure  # noqa: E402 - its path is known now
from gpu.harness import Job, Section, run_all, run_here  # noqa: E402
from gpu.report import in_short, show, summary  # noqa: E402


def _correctness(name: str, function: str) -> Section:
    """One of several that run at once: most of their time goes into compiling."""
    return Section(
        name=name,
        title="correctness",
        module="gpu.correctness",
        function=function,
        share=60,
        group="correctness",
    )


SECTIONS = (
    Section(name="ceilings", title="ceilings", module="gpu.ceilings", share=25),
    _correctness("attention-8B", "attention_large"),
    _correctness("attention-small", "attention_small"),
    _correctness("others", "others"),
    Section(name="decode-attention", title="decode attention", module="gpu.decode_attention", share=45),
    Section(name="prefill-attention", title="prefill attention", module="gpu.prefill_attention", share=25),
    Section(name="engine-decode", title="engine steps", module="gpu.engine_decode", share=50),
    Section(name="mixed-workload", title="mixed workload", module="gpu.mixed_workload", share=55),
    Section(name="mixed-traffic", title="mixed traffic", module="gpu.mixed_traffic", share=40),
    Section(name="transformers", title="transformers", module="gpu.transformers_batching", share=40),
)
_INTERPRET = "TRITON_INTERPRET"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.job is not None:
        _section(options.job, options.lines)
        os._exit(0)  # everything is written, and a thread of somebody's may go on for ever
    # Triton decides when it is imported whether it interprets
    os.environ.pop(_INTERPRET, None)
    if options.rehearse:
        os.environ[_INTERPRET] = "1"
    if fault := _fault(options.rehearse):
        print(fault, file=sys.stderr)
        return 2
    chosen = [one for one in SECTIONS if not options.only or {one.name, one.group} & {*options.only}]
    began = time.monotonic()
    lines: list[tuple[Section, Figure]] = []

    def tell(section: Section, figure: Figure) -> None:
        lines.append((section, figure))
        print(f"  {in_short(figure)}", file=sys.stderr, flush=True)

    if options.rehearse:
        beside = _rehearse(chosen, options.seconds, tell)
    else:
        command = [sys.executable, str(_HERE)]
        beside = run_all(
            chosen, options.seconds, lambda job, its: [*command, "--job", str(job), "--lines", str(its)], tell
        )
    result = summary(lines, beside, time.monotonic() - began, rehearsal=options.rehearse)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    show(lines, result, sys.stdout)
    print(f"The figures are in {options.json}.", file=sys.stderr)
    return 0 if result["ok"] else 1


def _fault(rehearsal: bool) -> str:
    """Why nothing can be measured here; empty where something can."""
    if importlib.util.find_spec("torch") is None:
        return "gpu-check needs torch: https://pytorch.org says how to install it for your GPU"
    if importlib.util.find_spec("triton") is None:
        return "gpu-check needs Triton: pip install triton (Linux only)"
    if rehearsal:
        return ""
    import torch

    if torch.version.cuda is None or not torch.cuda.is_available():
        why = "torch here is built without CUDA" if torch.version.cuda is None else "torch sees no CUDA GPU"
        return (
            f"gpu-check needs a CUDA GPU, and {why} (torch {torch.__version__}); nothing was measured. "
            "'--rehearse' runs all of it on a CPU, at tiny sizes, to see that it works."
        )
    if torch.cuda.get_device_capability() < (8, 0):
        return f"gpu-check needs a GPU of compute capability 8.0 or newer, not {torch.cuda.get_device_name()}"
    return ""


def _section(asked: Path, lines: Path) -> None:
    """Run one section, as a process of its own."""
    job = Job(**json.loads(asked.read_text()))
    section = next(one for one in SECTIONS if one.name == job.section)
    with lines.open("a") as file:

        def write(line: dict[str, Any]) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        def emit(figure: Figure) -> None:
            write(figure.as_told())

        from gpu.lab import Lab

        lab = Lab(job, lambda known: write({"known": known}))
        write({"machine": lab.machine()})
        run_here(section, lab, emit)


def _rehearse(
    chosen: Sequence[Section], seconds: float, tell: Callable[[Section, Figure], None]
) -> dict[str, Any]:
    """Run all sections in this process."""
    import numpy
    import torch
    from gpu.lab import Lab

    torch.set_num_threads(1)  # waiting for one another takes longer than what there is to do
    known: dict[str, float] = {}
    machine: dict[str, Any] = {}
    until = time.time() + seconds
    for section in chosen:
        print(f"{section.title}: {section.name} ...", file=sys.stderr, flush=True)
        lab = Lab(Job(section=section.name, until=until, rehearsal=True, known=known), known.update)
        machine = lab.machine()

        def emit(figure: Figure, section: Section = section) -> None:
            tell(section, figure.as_rehearsed())

        with numpy.errstate(all="ignore"):  # a GPU says nothing of an overflow either
            run_here(section, lab, emit)
    return {"machine": machine}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys(section.group or section.name for section in SECTIONS))
    parser.add_argument("--only", action="append", choices=names, help="this section; may be repeated")
    parser.add_argument("--seconds", type=float, default=275.0, help="for all sections together (default: 275)")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, with tiny shapes: no figure counts")
    default = Path("benchmark-output/gpu-check.json")
    parser.add_argument("--json", type=Path, default=default, help=f"where the figures go (default: {default})")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--lines", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
