"""``orchestra bench --compare``: one load, served in four ways by the engine in this process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.errors import InputError

if TYPE_CHECKING:
    from orchestra.bench.contest import Calls
    from orchestra.cli.bench_files import BenchFiles
    from orchestra.config import LocalConfig, TrafficConfig

__all__ = ["PEOPLE", "WORK", "calls_of", "check_compared", "compare_ways"]

PEOPLE, WORK = ("lognormal:64:0.5:256", "uniform:16:32"), ("lognormal:96:0.6:384", "uniform:8:56")
"""Lengths of prompts and answers of both kinds, unless others are given: small, so that a round has many calls."""

_TAKEN = {
    *("compare", "minutes", "model", "config", "rates", "slo", "seed", "arrivals"),
    *("prompt", "output", "bulk_prompt", "bulk_output", "json_file", "html_file", "png_file"),
}


def check_compared(given: Iterable[str]) -> None:
    """Raise InputError where one of the parameters that were ``given`` means nothing to a comparison."""
    others = sorted(f"--{name.replace('_', '-')}" for name in given if name not in _TAKEN)
    if "--url" in others:
        raise InputError(
            "--compare schedules an engine in four ways, which no server at --url lets it: leave --url out, and "
            "name weights with --model (`orchestra model list`)"
        )
    if others:
        raise InputError(
            f"--compare has a load of its own, of the length that --minutes allows: leave {others[0]} out"
        )


def calls_of(
    interactive: tuple[str | None, str | None],
    bulk: tuple[str | None, str | None],
    arrivals: str,
    rates: Sequence[float],
    seed: int,
) -> Calls:
    """Return who asks: each with the lengths of prompts and answers, as written. Raises InputError."""
    from orchestra.bench.contest import Calls
    from orchestra.bench.load.arrivals import Arrivals
    from orchestra.bench.load.workload import Shape
    from orchestra.lengths import Lengths

    if len(rates) > 1:
        raise InputError(
            "--compare measures at one rate of interactive calls: give --rates one number, or leave it"
        )
    people, work = (
        Shape(
            Lengths.parse(prompt or usual[0], f"{whose}prompt"),
            Lengths.parse(output or usual[1], f"{whose}output"),
        )
        for (prompt, output), usual, whose in ((interactive, PEOPLE, ""), (bulk, WORK, "bulk "))
    )
    return Calls(people, work, Arrivals.parse(arrivals), next(iter(rates), None), seed)


def compare_ways(
    model: str, config: Path | None, calls: Calls, *, slo: str | None, minutes: float, files: BenchFiles
) -> int:
    """Measure, print the report and leave the files. Returns the exit code.

    Raises InputError before anything is computed where ``model`` is no engine in this process, and as
    `Contest.run` does.
    """
    import asyncio
    from dataclasses import replace
    from functools import partial

    from rich.console import Console

    from orchestra.bench.contest import Contest
    from orchestra.bench.load.engine_target import EngineWays
    from orchestra.bench.load.target import printable
    from orchestra.bench.report.comparison_page import comparison_page
    from orchestra.bench.report.comparison_picture import save_comparison
    from orchestra.bench.report.comparison_table import comparison_table
    from orchestra.bench.results.slo import Slo
    from orchestra.cli.bench_files import Leaves
    from orchestra.local_route.route import engine_config
    from orchestra.localengine import LocalEngine
    from orchestra.localengine.models.capacity import available_memory, default_kv_bytes

    promised = None if slo is None else Slo.parse(slo)
    files.check()
    name, local, traffic = _engine(model, config)
    engine = engine_config(local, traffic)
    if engine.kv_bytes is None:  # all ways get the same, whatever else takes memory meanwhile
        engine = replace(engine, kv_bytes=default_kv_bytes(available_memory()))
    ways = EngineWays(partial(LocalEngine.load, local.weights), engine)
    messages = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    messages.print(f"engine: {printable(name)}; at most {minutes:g} minutes")
    contest = Contest(
        name,
        ways.open,
        lambda: ways.slots,
        calls,
        limit=60 * minutes,
        targets=(engine.ttft_target_ms / 1000, engine.tpot_target_ms / 1000),
        slo=promised,
        say=messages.print,
    )
    code = 0
    try:
        asyncio.run(contest.run())
    except KeyboardInterrupt:
        code = 130
    report = contest.report(ways.describe())
    console = Console(highlight=False)
    console.print(comparison_table(report))
    leaves = Leaves(
        report.as_dict,
        partial(comparison_page, report),
        None if report.found is None else partial(save_comparison, report),
    )
    written = files.write(leaves, lambda line: console.print(printable(line), soft_wrap=True, markup=False))
    return code or (0 if written and report.found is not None and report.failure is None else 1)


def _engine(model: str, config: Path | None) -> tuple[str, LocalConfig, TrafficConfig]:
    """Return what the report calls it, and its settings."""
    from orchestra.cli.bench_aim import engine_settings
    from orchestra.cli.settings import find_settings
    from orchestra.config import LOCAL

    settings, _ = find_settings(config)
    routes = settings.models[model].routes if model in settings.models else (model,)
    head, _, name = routes[0].partition("/")
    if len(routes) > 1 or (head in settings.providers and name):
        raise InputError(
            f"--compare schedules one engine of this process, and {model} is answered by {', '.join(routes)}: "
            f"name an engine, as {LOCAL}/NAME, or weights (`orchestra model list`)"
        )
    if head != LOCAL or name not in settings.local:
        settings, route = engine_settings(model, [*settings.models])
        name = route.partition("/")[2]
    return f"{LOCAL}/{name}", settings.local[name], settings.traffic
