"""Interactive and bulk calls through one account, with several clients in turn: who waits, who is refused.

    python benchmarks/mixed_load.py                       # the base variant, every client
    python benchmarks/mixed_load.py --variant tokens --only orchestra --only aiolimiter

Each client runs in a fresh process against a provider that enforces the limits, in a process of its own. Peers run
in virtual environments of their own, which are made once, with pip, under ``~/.cache/orchestra-benchmarks``. One
JSON line goes to standard output for each client; the table goes to standard error, and the plot to a file.

What is measured starts when the client has taken in the whole backlog, one task a call, and a second has passed:
making two thousand calls of an SDK takes a loop seconds, whoever limits them. That time is told apart
(``handing_over_s``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mixed.peers import CLIENTS, Client
from mixed.report import judge, plot, show
from mixed.run import ClientFailed, run
from mixed.scenario import VARIANTS, Scenario
from peer_environment import NotInstalled
from rich.console import Console


def main() -> None:
    options = _parser().parse_args()
    console = Console(stderr=True, width=130)
    failed = False
    for name in options.variant or ["base"]:
        scenario = VARIANTS[name]
        if options.seconds is not None:
            scenario = replace(scenario, seconds=options.seconds)
        if options.bulk is not None:
            scenario = replace(scenario, bulk=options.bulk)
        clients = [CLIENTS[client] for client in options.only or CLIENTS if _fits(CLIENTS[client], scenario)]
        results, absent = _measure(scenario, clients, console)
        show(scenario, results, absent, console)
        if results:
            path = Path(options.out) / f"mixed-load-{name}.png"
            plot(scenario, results, path)
            console.print(f"plot: {path}", markup=False)
        failed |= not all(holds for *_, holds in judge(scenario, results))
    sys.exit(1 if failed else 0)


def _measure(
    scenario: Scenario, clients: list[Client], console: Console
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    results: dict[str, dict[str, Any]] = {}
    absent: dict[str, str] = {}
    for client in clients:
        console.print(f"{scenario.name}: {client.name} ...", markup=False)
        before = os.getloadavg()[0]
        try:
            result = run(client, scenario)
        except (NotInstalled, ClientFailed) as error:
            absent[client.name] = str(error)
            print(json.dumps({"variant": scenario.name, "client": client.name, "absent": str(error)}), flush=True)
            continue
        results[client.name] = result
        told = {key: value for key, value in result.items() if key != "waits"}
        machine = {"cpus": os.cpu_count(), "load": [round(before, 2), round(os.getloadavg()[0], 2)]}
        machine["python"] = platform.python_version()
        line = {"variant": scenario.name, "client": client.name, **told, "machine": machine}
        print(json.dumps(line), flush=True)
    return results, absent


def _fits(client: Client, scenario: Scenario) -> bool:
    match scenario.fits:
        case "all":
            return True
        case "untold":
            return client.learns
        case "ours":
            return client.ours


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told = "; ".join(f"{scenario.name}: {scenario.about}" for scenario in VARIANTS.values()).replace("%", "%%")
    parser.add_argument(
        "--variant", action="append", choices=list(VARIANTS), metavar="NAME", help=f"may be repeated ({told})"
    )
    parser.add_argument(
        "--only", action="append", choices=list(CLIENTS), metavar="CLIENT", help=f"of {', '.join(CLIENTS)}"
    )
    parser.add_argument("--seconds", type=float, help="how long the load goes on (default: the variant's)")
    parser.add_argument("--bulk", type=int, help="how many bulk calls there are (default: 2000)")
    parser.add_argument("--out", default="benchmark-output", help="folder of the plots")
    return parser


if __name__ == "__main__":
    main()
