"""Interactive requests among endless bulk work on one engine: what each class loses to the other.

    python benchmarks/mixed_classes.py                                 # half an hour
    python benchmarks/mixed_classes.py --rounds 1 --arrivals 20        # five minutes, and rougher figures
    python benchmarks/mixed_classes.py --only alone --only bulk --only classes

Each round goes through the same phases: interactive requests alone, bulk alone, both under our scheduler, and both
under those of others (`EngineConfig.scheduler`). A phase has an engine of its own, and the same requests at the
same moments as the others of its round. Bulk is endless: as many requests as ``--bulk`` are always under way.

One JSON line goes to standard output for each phase, and one for each setting over all rounds; the tables go to
standard error. Times are what the engine tells, from the call to each token; bulk's speed is what its readers got.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from orchestra.localengine import EngineConfig, LocalEngine, SamplingParams, Timing
from orchestra.localengine.config import SchedulerName
from orchestra.policies.rank import nearest_rank

MOST_TTFT = 2.0  # times that of the requests alone
LEAST_BULK = 0.8  # of its speed alone


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the engine in one phase. Times in seconds, lengths in tokens."""

    arrivals: int = 50
    per_second: float = 0.3
    prompt: int = 40
    output: int = 32
    bulk: int = 32
    warm_up: float = 10.0

    @property
    def seconds(self) -> float:
        return self.arrivals / self.per_second

    def timetable(self, seed: int) -> list[float]:
        """When each interactive request comes: at random, as calls of people who know nothing of each other."""
        rng = random.Random(f"arrivals {seed}")
        return list(itertools.accumulate(rng.expovariate(self.per_second) for _ in range(self.arrivals)))


@dataclass(frozen=True, slots=True)
class Setting:
    """Who calls, and which scheduler serves them."""

    interactive: bool
    bulk: bool
    scheduler: SchedulerName = "classes"


SETTINGS = {
    "alone": Setting(interactive=True, bulk=False),
    "bulk": Setting(interactive=False, bulk=True),
    "classes": Setting(interactive=True, bulk=True),
    "priority": Setting(interactive=True, bulk=True, scheduler="priority"),
    "fcfs": Setting(interactive=True, bulk=True, scheduler="fcfs"),
}


@dataclass(slots=True)
class Measured:
    """What one phase, or several of one setting, came to."""

    timings: list[Timing] = field(default_factory=list)
    seconds: float = 0.0
    bulk_output: int = 0
    bulk_prompt: int = 0
    displaced: int = 0
    abandoned: int = 0

    def figures(self) -> dict[str, Any]:
        """Milliseconds and tokens a second; None where nobody of the class called."""
        between = [[b - a for a, b in itertools.pairwise(timing.tokens)] for timing in self.timings]
        series = {
            "ttft": [timing.ttft for timing in self.timings],
            "tpot": [statistics.fmean(gaps) for gaps in between if gaps],  # of each request
            "gap": [gap for gaps in between for gap in gaps],  # of each token
        }
        told: dict[str, Any] = {"interactive": len(self.timings)}
        for name, values in series.items():
            for percent in (50, 95):
                found = nearest_rank(values, percent / 100) * 1000 if values else None
                told[f"{name}_p{percent}_ms"] = None if found is None else round(found, 1)
        return {
            **told,
            "bulk_output_per_s": round(self.bulk_output / self.seconds, 2),
            "bulk_prompt_per_s": round(self.bulk_prompt / self.seconds, 2),
            "displaced": self.displaced,
            "abandoned": self.abandoned,
            "seconds": round(self.seconds, 1),
        }

    @classmethod
    def together(cls, parts: Sequence[Measured]) -> Measured:
        return cls(
            timings=[timing for part in parts for timing in part.timings],
            **{
                name: sum(getattr(part, name) for part in parts)
                for name in ("seconds", "bulk_output", "bulk_prompt", "displaced", "abandoned")
            },
        )


async def measure(engine: LocalEngine, setting: Setting, load: Load, seed: int) -> Measured:
    """Run one phase on an engine of its own."""
    got = Measured()
    async with engine, asyncio.TaskGroup() as group:
        callers = [
            group.create_task(_call_for_ever(engine, random.Random(f"bulk {seed} {number}"), got))
            for number in range(load.bulk if setting.bulk else 0)
        ]
        await asyncio.sleep(load.warm_up if setting.bulk else 0)
        await asyncio.gather(*(_ask(engine, load, random.Random(f"warm {n}")) for n in range(3)))
        before = engine.stats()
        output, prompt, began = got.bulk_output, got.bulk_prompt, time.monotonic()
        if setting.interactive:
            timetable = enumerate(load.timetable(seed))
            got.timings = await asyncio.gather(
                *(_ask(engine, load, random.Random(f"call {seed} {n}"), after) for n, after in timetable)
            )
        else:
            await asyncio.sleep(load.seconds)
        got.seconds = time.monotonic() - began
        got.bulk_output -= output
        got.bulk_prompt -= prompt
        after = engine.stats()
        got.displaced = after["displacements"] - before["displacements"]
        got.abandoned = after["abandoned"] - before["abandoned"]
        for caller in callers:
            caller.cancel()
    return got


async def _ask(engine: LocalEngine, load: Load, rng: random.Random, after: float = 0.0) -> Timing:
    await asyncio.sleep(after)
    return (await engine.complete(_prompt(rng, load.prompt), _exactly(load.output))).timing


async def _call_for_ever(engine: LocalEngine, rng: random.Random, got: Measured) -> None:
    """One bulk request after another: log-normal prompts, outputs with a long tail."""
    while True:
        prompt = _prompt(rng, min(400, max(16, int(rng.lognormvariate(math.log(90), 0.8)))))
        length = min(160, max(8, int(rng.lognormvariate(math.log(40), 0.8))))
        got_prompt = False
        async for delta in engine.stream(prompt, _exactly(length), traffic="bulk"):
            got.bulk_output += len(delta.token_ids)
            if not got_prompt:
                got.bulk_prompt += len(prompt)
                got_prompt = True


def _prompt(rng: random.Random, length: int) -> list[int]:
    """Words at random: no two prompts begin alike, so that the prefix cache helps nobody."""
    return [rng.randrange(200, 900) for _ in range(length)]


def _exactly(length: int) -> SamplingParams:
    return SamplingParams(max_tokens=length, temperature=0, ignore_eos=True)


def judge(results: dict[str, dict[str, Any]], tpot_target_ms: float) -> list[tuple[str, str, str, bool]]:
    """Each target that was measured: what, what is asked, what it came to, and whether it holds."""
    ours, verdicts = results.get("classes"), []
    if ours is None:
        return []
    if alone := results.get("alone"):
        most, ttft = MOST_TTFT * alone["ttft_p95_ms"], ours["ttft_p95_ms"]
        verdicts.append(
            (
                "interactive TTFT p95",
                f"<= {MOST_TTFT:g} x alone ({most:.0f} ms)",
                f"{ttft:.0f} ms ({ttft / alone['ttft_p95_ms']:.2f} x)",
                ttft <= most,
            )
        )
    tpot = ours["tpot_p95_ms"]
    verdicts.append(
        ("interactive TPOT p95", f"<= {tpot_target_ms:.0f} ms", f"{tpot:.0f} ms", tpot <= tpot_target_ms)
    )
    if bulk := results.get("bulk"):
        share = ours["bulk_output_per_s"] / bulk["bulk_output_per_s"]
        verdicts.append(
            ("bulk, output tokens a second", f">= {LEAST_BULK:.0%} of alone", f"{share:.0%}", share >= LEAST_BULK)
        )
    return verdicts


def show(results: dict[str, dict[str, Any]], console: Console) -> None:
    """Print the figures of every setting."""
    table = Table(title="interactive and bulk on one engine", title_justify="left")
    columns = ("TTFT p50", "p95", "TPOT p50", "p95", "gap p95", "bulk tok/s", "of alone", "displaced", "abandoned")
    table.add_column("setting")
    for column in ("calls", *columns):
        table.add_column(column, justify="right")
    alone = results.get("bulk", {}).get("bulk_output_per_s")
    for name, one in results.items():
        times = ("ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "tpot_p95_ms", "gap_p95_ms")
        speed = one["bulk_output_per_s"]
        table.add_row(
            name,
            str(one["interactive"]),
            *("" if one[key] is None else f"{one[key]:.0f} ms" for key in times),
            f"{speed:.1f}" if speed else "",
            f"{speed / alone:.0%}" if speed and alone else "",
            str(one["displaced"]),
            str(one["abandoned"]),
        )
    console.print(table)


def run(
    open_engine: Callable[[SchedulerName], LocalEngine],
    names: Sequence[str],
    load: Load,
    rounds: int,
    tell: Callable[[dict[str, Any]], None],
) -> dict[str, dict[str, Any]]:
    """Go through the settings, round by round; return the figures of each over all rounds."""
    parts: dict[str, list[Measured]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            setting = SETTINGS[name]
            before = os.getloadavg()[0]
            got = asyncio.run(measure(open_engine(setting.scheduler), setting, load, number))
            parts[name].append(got)
            machine = {"load": [round(before, 2), round(os.getloadavg()[0], 2)]}
            tell({"setting": name, "round": number + 1, **got.figures(), "machine": machine})
    return {name: Measured.together(measured).figures() for name, measured in parts.items()}


def main() -> None:
    options = _parser().parse_args()
    load = Load(
        arrivals=math.ceil(options.arrivals / options.rounds),
        per_second=options.rate,
        prompt=options.prompt,
        output=options.output,
        bulk=options.bulk,
        warm_up=options.warm_up,
    )
    defaults = EngineConfig()

    def open_engine(scheduler: SchedulerName) -> LocalEngine:
        config = EngineConfig(scheduler=scheduler, threads=options.threads, kv_bytes=options.kv_mib << 20)
        return LocalEngine.load(options.model, config)

    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}

    def tell(line: dict[str, Any]) -> None:
        line["machine"] = {**machine, **line.get("machine", {})}
        print(json.dumps({"benchmark": "mixed_classes", "model": options.model, **line}), flush=True)

    results = run(open_engine, options.only or list(SETTINGS), load, options.rounds, tell)
    for name, figures in results.items():
        tell({"setting": name, "round": "all", **figures})
    console = Console(stderr=True, width=130)
    show(results, console)
    verdicts = judge(results, defaults.tpot_target_ms)
    table = Table(title="targets", title_justify="left")
    for column in ("what", "asked", "measured", "holds"):
        table.add_column(column)
    for what, asked, measured, holds in verdicts:
        table.add_row(what, asked, measured, "yes" if holds else "NO")
    console.print(table)
    sys.exit(0 if all(holds for *_, holds in verdicts) else 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    load = Load()
    parser.add_argument("--only", action="append", choices=list(SETTINGS), help="may be repeated (default: all)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--arrivals", type=int, default=100, help="interactive requests over all rounds")
    parser.add_argument("--rate", type=float, default=load.per_second, help="of them a second")
    parser.add_argument("--prompt", type=int, default=load.prompt, help="tokens of each")
    parser.add_argument("--output", type=int, default=load.output, help="tokens of each")
    parser.add_argument("--bulk", type=int, default=load.bulk, help="bulk requests that are always under way")
    parser.add_argument("--warm-up", type=float, default=load.warm_up, help="seconds of bulk before a phase")
    parser.add_argument("--threads", type=int, help="of a step (default: torch's choice)")
    parser.add_argument("--kv-mib", type=int, default=512, help="memory of the KV cache")
    parser.add_argument("--model", default="smollm2-135m")
    return parser


if __name__ == "__main__":
    main()
