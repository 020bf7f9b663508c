"""One load on one server, sent by `orchestra bench` and by other load generators: do they measure the same?

    python benchmarks/agreement.py                        # a scripted server: six minutes
    python benchmarks/agreement.py --server vllm          # vLLM's, on the CPU, with the small model

The generators take turns, round by round, each in a fresh process, the peers in virtual environments of their own
under ``~/.cache/orchestra-benchmarks``. All send streamed chats of the same lengths, evenly apart, at a rate that
the server keeps up with. Each figure is what the generator itself reports; medians of the rounds are compared.

They define throughput differently. Ours counts what comes in a window after a warm-up; the others divide by the
time until the last answer, which says less, by a call's duration as a share of the load's.

One JSON line goes to standard output for each run, the verdicts to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from generators.contestants import GENERATORS, GeneratorFailed
from generators.figures import BOUNDS, Figures, differences, median_of
from generators.servers import SERVERS
from generators.workload import Workload
from peer_environment import NotInstalled
from rich.console import Console
from verdicts import Verdict, show_verdicts

OURS = "orchestra bench"
WORKLOADS = {
    "scripted": Workload(rate=5.0, calls=130, prompt_tokens=128, output_tokens=41, warm_up=5),
    "vllm": Workload(rate=0.5, calls=30, prompt_tokens=128, output_tokens=32, warm_up=3),
}


def main() -> None:
    options = _parser().parse_args()
    console = Console(stderr=True, width=110)
    workload = WORKLOADS[options.server]
    if options.calls is not None:
        workload = Workload(**asdict(workload) | {"calls": options.calls})
    told: dict[str, list[Figures]] = defaultdict(list)
    absent: dict[str, str] = {}
    names = [OURS, *(options.only or [name for name in GENERATORS if name != OURS])]
    try:
        with SERVERS[options.server]() as server:
            _tell("workload", {"server": options.server, **asdict(workload)})
            for number in range(options.rounds):
                first = number % len(names)  # who follows whom changes: what one leaves behind falls on all
                for name in (*names[first:], *names[:first]):
                    if name in absent:
                        continue
                    console.print(f"round {number + 1}: {name} ...", markup=False)
                    try:
                        figures = GENERATORS[name].run(workload, server)
                    except (NotInstalled, GeneratorFailed) as error:
                        absent[name] = str(error)
                        continue
                    told[name].append(figures)
                    _tell(name, {"round": number + 1, **asdict(figures)})
    except NotInstalled as error:
        sys.exit(f"there is no server to load: {error}")
    verdicts = judge({name: median_of(rounds) for name, rounds in told.items()})
    for name, why in absent.items():
        _tell(name, {"absent": why})
    show_verdicts(verdicts, absent, console)
    sys.exit(0 if verdicts and all(holds for *_, holds in verdicts) else 1)


def judge(medians: Mapping[str, Figures]) -> list[Verdict]:
    """Return, for each figure that ours and another generator have, whether they agree."""
    verdicts = []
    for name, theirs in medians.items():
        if name == OURS or OURS not in medians:
            continue
        for figure, more in differences(medians[OURS], theirs).items():
            both = f"{getattr(medians[OURS], figure):.1f} and {getattr(theirs, figure):.1f}: {more:+.1%}"
            verdicts.append(
                (f"{figure}, {name}", f"within {BOUNDS[figure]:.0%}", both, abs(more) <= BOUNDS[figure])
            )
    return verdicts


def _tell(what: str, figures: Mapping[str, Any]) -> None:
    machine = {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 2), "python": platform.python_version()}
    print(json.dumps({"benchmark": "agreement", "what": what, **figures, "machine": machine}), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=list(SERVERS), default="scripted", help="default: scripted")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each generator (default: 3)")
    parser.add_argument("--calls", type=int, help="of each run (130 for the scripted server, 30 for vLLM's)")
    peers = [name for name in GENERATORS if name != OURS]
    parser.add_argument("--only", action="append", choices=peers, metavar="PEER", help=f"of {', '.join(peers)}")
    return parser


if __name__ == "__main__":
    main()
