"""``orchestra bench``: how a target answers under load, and at which rate to run it."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestra.cli.bench_compare import PEOPLE, WORK
from orchestra.cli.duration_option import duration_option
from orchestra.errors import InputError
from orchestra.lengths import LENGTHS_HELP

if TYPE_CHECKING:
    from orchestra.bench.experiment import Experiment
    from orchestra.bench.load.workload import Load

__all__ = ["bench"]

_LOAD, _FILES = "The load", "What is left"
_ARRIVALS, _PROMPT, _OUTPUT = "poisson", "lognormal:128:0.6:1024", "uniform:32:96"


def bench(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="What is asked: with --url the server's name for it; else a model or route of orchestra.toml; "
            "else one for the engine in this process: a name of `orchestra model list`, a .gguf file or a folder.",
        ),
    ],
    url: Annotated[
        str | None,
        typer.Option("--url", help="An OpenAI-compatible server, as an SDK takes it: http://localhost:8000/v1."),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", metavar="NAME", help="The variable that holds the server's key.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="The settings. Default: orchestra.toml, if there is one.")
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            "--rates", metavar="0.5,1,2", help="Calls a second, one after another.", rich_help_panel=_LOAD
        ),
    ] = None,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep",
            help="Go on from the last of --rates, or from a slow one: double until the target no longer keeps up, "
            "then close in on the edge.",
            rich_help_panel=_LOAD,
        ),
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Serve one load in four ways by the engine in this process, and say what tells them apart: one "
            "queue, static batches, two pools, classes. --rates is one number then, of interactive calls.",
        ),
    ] = False,
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes", min=1.0, help="With --compare: how long it takes, at most; in it, as many rounds as fit."
        ),
    ] = 9.0,
    slo: Annotated[
        str | None,
        typer.Option(
            "--slo",
            metavar="ttft=500ms,tpot=50ms",
            help="What interactive calls are promised: ttft, tpot, e2e; and share=95%, of how many.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    seconds: Annotated[
        str,
        typer.Option(
            "--seconds", metavar="TIME", help="How long each rate is measured: 30, or 2m.", rich_help_panel=_LOAD
        ),
    ] = "30s",
    warm_up: Annotated[
        str,
        typer.Option(
            "--warm-up", metavar="TIME", help="How long there is load before it counts.", rich_help_panel=_LOAD
        ),
    ] = "5s",
    drain: Annotated[
        str,
        typer.Option(
            "--drain", metavar="TIME", help="How long answers are awaited after it.", rich_help_panel=_LOAD
        ),
    ] = "60s",
    arrivals: Annotated[
        str | None,
        typer.Option(
            "--arrivals",
            help=f"poisson, constant, or gamma:3 (bursty). Default: {_ARRIVALS}",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="LENGTHS",
            help=f"Tokens of a prompt: {LENGTHS_HELP}. Default: {_PROMPT}; to compare, {PEOPLE[0]}",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="LENGTHS",
            help=f"Tokens of an answer, at most. Default: {_OUTPUT}; to compare, {PEOPLE[1]}",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    bulk_share: Annotated[
        float | None,
        typer.Option(
            "--bulk-share", min=0.0, max=1.0, help="Share of bulk calls. Default: 0", rich_help_panel=_LOAD
        ),
    ] = None,
    bulk_prompt: Annotated[
        str | None,
        typer.Option(
            "--bulk-prompt",
            metavar="LENGTHS",
            help=f"Default: as --prompt; to compare, {WORK[0]}",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    bulk_output: Annotated[
        str | None,
        typer.Option(
            "--bulk-output",
            metavar="LENGTHS",
            help=f"Default: as --output; to compare, {WORK[1]}",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="F.jsonl",
            help='Recorded calls instead, a line each: {"at": 0.5, "prompt_tokens": 90, "output_tokens": 40, '
            '"traffic": "bulk"}. --rates stretch it; without, it comes as it came.',
            rich_help_panel=_LOAD,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of everything drawn by lot.", rich_help_panel=_LOAD)] = 0,
    body: Annotated[
        str | None,
        typer.Option(
            "--body",
            metavar="JSON",
            help='Further fields of each request: {"temperature": 0, "ignore_eos": true}.',
            rich_help_panel=_LOAD,
        ),
    ] = None,
    length_field: Annotated[
        str,
        typer.Option(
            "--length-field",
            help="The field that bounds an answer; some models want max_completion_tokens.",
            rich_help_panel=_LOAD,
        ),
    ] = "max_tokens",
    dollars_per_hour: Annotated[
        float | None,
        typer.Option(
            "--dollars-per-hour",
            min=0.0,
            help="What the target's machine costs. Without it the prices of the settings count.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="F", help="Every figure.", rich_help_panel=_FILES)
    ] = None,
    html_file: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="F", help="One page with plots, to read and to send.", rich_help_panel=_FILES
        ),
    ] = None,
    png_file: Annotated[
        Path | None,
        typer.Option(
            "--png", metavar="F", help="The plots as a picture; needs matplotlib.", rich_help_panel=_FILES
        ),
    ] = None,
) -> None:
    """Load a target with calls at given rates, and say at which rate to run it.

    The load is open: calls come at their instants, answered or not, as those of people who know nothing of each
    other do; and latencies count from those instants. One call is made first, and nothing else where that fails.

    A server, at four rates, against a promise:

      orchestra bench --url http://localhost:8000/v1 --model llama --rates 1,2,4,8 --slo ttft=500ms,tpot=50ms
      --html report.html

    The engine in this process, with a third of bulk calls, to its limit:

      orchestra bench --model smollm2-135m --sweep --bulk-share 0.33

    What batching buys and costs, and why two kinds of traffic are kept apart, in this machine's own numbers:

      orchestra bench --compare --model smollm2-135m --html ways.html

    Each round of it is a bulk job that comes at once and people who come while it is under way. Every way gets the
    very same calls at the same instants, and all of them count; a load in which bulk never ends would give the
    quicker way more to do, and have no end to time. Ways take turns, and that one is better than another is said
    only where the 95% bounds of their ratio leave no doubt. Two pools halve slots, threads and KV cache between
    them; the weights they hold twice. Without --slo, interactive calls are promised what the engine's targets are:
    tpot_target_ms, and a first token at most ttft_target_ms later than alone.

    A model of orchestra.toml is asked through its routes, its limits and its two classes: those are measured, too.
    A server at --url is asked as it is, without a retry. Mind what a paid one costs: rates are not bounded.
    Interrupted, it reports what was measured until then.

    Exit code 0: measured; 1: no rate keeps the --slo, the target does not answer, or a file was not written;
    2: bad usage, nothing was sent; 130: interrupted.
    """
    import asyncio

    from rich.console import Console

    from orchestra.bench.experiment import Experiment
    from orchestra.bench.load.clock import LoopClock
    from orchestra.bench.load.generator import Phases
    from orchestra.bench.load.target import printable
    from orchestra.bench.report.page import page
    from orchestra.bench.report.picture import save_picture
    from orchestra.bench.report.table import short, table
    from orchestra.bench.results.slo import Slo
    from orchestra.cli.bench_aim import aim
    from orchestra.cli.bench_files import BenchFiles, Leaves

    files = BenchFiles(json_file, html_file, png_file)
    if compare:
        from orchestra.cli.bench_compare import calls_of, check_compared, compare_ways

        check_compared(name for name in context.params if _is_given(context, name))
        _check_finite({"--minutes": minutes})
        listed = _rates(rates) if rates is not None else []
        calls = calls_of((prompt, output), (bulk_prompt, bulk_output), arrivals or _ARRIVALS, listed, seed)
        raise typer.Exit(compare_ways(model, config, calls, slo=slo, minutes=minutes, files=files))
    if _is_given(context, "minutes"):
        raise InputError("--minutes is for --compare; without it, --seconds is how long each rate is measured")
    _check_finite({"--bulk-share": bulk_share, "--dollars-per-hour": dollars_per_hour})
    phases = Phases(
        duration_option("--warm-up", warm_up, bare=True, least=0.0),
        duration_option("--seconds", seconds, bare=True, least=0.1),
        duration_option("--drain", drain, bare=True, least=0.0),
    )
    load: Load
    if trace is None:
        load = _mix((prompt, output), (bulk_prompt, bulk_output), bulk_share, arrivals, seed)
        listed = _rates(rates) if rates is not None else []
        if not listed and not sweep:
            raise InputError("say at which rates, --rates 1,2,4, or find the limit with --sweep")
    else:
        from orchestra.bench.load.trace import Trace

        shape = {
            "--arrivals": arrivals,
            "--prompt": prompt,
            "--output": output,
            "--bulk-share": bulk_share,
            "--bulk-prompt": bulk_prompt,
            "--bulk-output": bulk_output,
        }
        if given := next((name for name, value in shape.items() if value is not None), None):
            raise InputError(f"--trace tells when calls come, how long and of which class: leave {given} out")
        load = Trace.read(trace, seed)
        listed = _rates(rates) if rates is not None else [load.rate]
    promised = None if slo is None else Slo.parse(slo)
    if promised is not None and not load.has_interactive:
        among = "with --bulk-share 1" if trace is None else f"in {trace}"
        raise InputError(f"--slo is a promise to interactive calls, and {among} there is none")
    files.check()
    goal = aim(url, model, config, api_key_env, _body(body), length_field)
    messages = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    messages.print(f"target: {printable(goal.about)}")

    held: list[Experiment] = []

    async def measure() -> None:
        async with goal.open() as target:
            experiment = Experiment(
                target,
                load,
                phases,
                slo=promised,
                dollars_per_hour=goal.dollars_per_hour if dollars_per_hour is None else dollars_per_hour,
                clock=LoopClock(),
                say=messages.print,
                watch=lambda found: messages.print(
                    f"    {short(found.answered_per_s)} answered/s, {short(found.output_tokens_per_s)} tokens/s"
                    + (", did not keep up" if found.saturated else "")
                ),
            )
            held.append(experiment)
            await experiment.run(listed, sweep=sweep)

    code = 0
    try:
        asyncio.run(measure())
    except KeyboardInterrupt:
        if not held:
            raise
        code = 130
    report = held[0].report(goal.settings)
    console = Console(highlight=False)
    console.print(table(report))
    leaves = Leaves(
        report.as_dict, partial(page, report), partial(save_picture, report) if report.points else None
    )
    written = files.write(leaves, lambda line: console.print(printable(line), soft_wrap=True, markup=False))
    if code == 0 and (not written or (promised is not None and report.advice.rate is None)):
        code = 1
    raise typer.Exit(code)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _mix(
    interactive: tuple[str | None, str | None],
    bulk: tuple[str | None, str | None],
    share: float | None,
    arrivals: str | None,
    seed: int,
) -> Load:
    from orchestra.bench.load.arrivals import Arrivals
    from orchestra.bench.load.workload import Mix, Shape
    from orchestra.lengths import Lengths

    whats = ("prompt", "output")
    prompt, output = (
        Lengths.parse(default if text is None else text, what)
        for text, default, what in zip(interactive, (_PROMPT, _OUTPUT), whats, strict=True)
    )
    bulk_prompt, bulk_output = (
        None if text is None else Lengths.parse(text, f"bulk {what}")
        for text, what in zip(bulk, whats, strict=True)
    )
    others = Shape(bulk_prompt or prompt, bulk_output or output)
    when = Arrivals.parse(_ARRIVALS if arrivals is None else arrivals)
    return Mix(Shape(prompt, output), others, share or 0.0, when, seed)


def _check_finite(numbers: dict[str, float | None]) -> None:
    """Raise InputError for what no bound catches: nothing is below or above nan, and a load without end costs."""
    for name, value in numbers.items():
        if value is not None and not math.isfinite(value):
            raise InputError(f"{name} must be a number that is finite, not {value:g}")


def _rates(text: str) -> list[float]:
    try:
        found = sorted({float(part) for part in text.split(",") if part.strip()})
    except ValueError:
        found = []
    if not found or not all(0 < rate <= 100_000 for rate in found):
        raise InputError(f"--rates {text!r}: write calls a second like 0.5,1,2,4")
    return found


def _body(text: str | None) -> dict[str, Any]:
    from orchestra.call import read_json

    try:
        found = read_json(text.encode()) if text is not None else {}
    except ValueError as error:
        raise InputError(f"--body is no JSON: {error}") from None
    if not isinstance(found, dict) or {"model", "messages", "stream"} & found.keys():
        raise InputError("--body must be a JSON object, without model, messages and stream")
    return found
