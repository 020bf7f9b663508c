"""``orchestra bench``: how a target answers under load, and at which rate to run it."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestra.errors import InputError

if TYPE_CHECKING:
    from orchestra.bench.experiment import Experiment
    from orchestra.bench.load.endpoint_target import EndpointTarget
    from orchestra.bench.load.route_target import RouteTarget
    from orchestra.bench.load.workload import Load

__all__ = ["bench"]

_LOAD, _FILES = "The load", "What is left"
_ARRIVALS, _PROMPT, _OUTPUT = "poisson", "lognormal:128:0.6:1024", "uniform:32:96"


def bench(
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
        float, typer.Option("--seconds", min=0.1, help="How long each rate is measured.", rich_help_panel=_LOAD)
    ] = 30.0,
    warm_up: Annotated[
        float,
        typer.Option("--warm-up", min=0.0, help="Seconds of load before it counts.", rich_help_panel=_LOAD),
    ] = 5.0,
    drain: Annotated[
        float,
        typer.Option(
            "--drain", min=0.0, help="Seconds after it in which answers are awaited.", rich_help_panel=_LOAD
        ),
    ] = 60.0,
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
            help="Tokens of a prompt: 128, uniform:64:256, or lognormal:128:0.8:1024 (median, sigma, most). "
            f"Default: {_PROMPT}",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="LENGTHS",
            help=f"Tokens of an answer, at most. Default: {_OUTPUT}",
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
        typer.Option("--bulk-prompt", metavar="LENGTHS", help="Default: as --prompt.", rich_help_panel=_LOAD),
    ] = None,
    bulk_output: Annotated[
        str | None,
        typer.Option("--bulk-output", metavar="LENGTHS", help="Default: as --output.", rich_help_panel=_LOAD),
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
    from orchestra.bench.report.table import short, table
    from orchestra.bench.results.slo import Slo
    from orchestra.cli.bench_files import BenchFiles

    _check_finite(
        {
            "--seconds": seconds,
            "--warm-up": warm_up,
            "--drain": drain,
            "--bulk-share": bulk_share,
            "--dollars-per-hour": dollars_per_hour,
        }
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
    files = BenchFiles(json_file, html_file, png_file)
    files.check()
    aim = _aim(url, model, config, api_key_env, _body(body), length_field)
    messages = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    messages.print(f"target: {printable(aim.about)}")

    held: list[Experiment] = []

    async def measure() -> None:
        async with aim.open() as target:
            experiment = Experiment(
                target,
                load,
                Phases(warm_up, seconds, drain),
                slo=promised,
                dollars_per_hour=aim.dollars_per_hour if dollars_per_hour is None else dollars_per_hour,
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
    report = held[0].report(aim.settings)
    console = Console(highlight=False)
    console.print(table(report))
    written = files.write(report, lambda line: console.print(printable(line), soft_wrap=True, markup=False))
    if code == 0 and (not written or (promised is not None and report.advice.rate is None)):
        code = 1
    raise typer.Exit(code)


@dataclass(frozen=True, slots=True)
class _Aim:
    """What is asked, not opened yet."""

    about: str
    open: Callable[[], AbstractAsyncContextManager[EndpointTarget | RouteTarget]]
    settings: dict[str, str]
    dollars_per_hour: float | None = None


def _aim(
    url: str | None,
    model: str,
    config: Path | None,
    api_key_env: str | None,
    body: dict[str, Any],
    length_field: str,
) -> _Aim:
    told = {"further fields": json.dumps(body)} if body else {}
    if url is not None:
        from orchestra.bench.load.endpoint_target import EndpointTarget

        if config is not None:
            raise InputError("--url asks a server as it is, without settings: leave out one of --url and --config")
        endpoint = EndpointTarget(url, model, api_key=_key(api_key_env), body=body, length_field=length_field)
        return _Aim(endpoint.name, lambda: endpoint, told)
    if api_key_env is not None:
        raise InputError("--api-key-env is for --url; keys of other targets stand in orchestra.toml")

    from orchestra.bench.load.route_target import RouteTarget
    from orchestra.cli.settings import find_settings
    from orchestra.config import LOCAL

    settings, origin = find_settings(config)
    head, _, name = model.partition("/")
    known = model in settings.models or (head in settings.providers and bool(name))
    if not known and not (head == LOCAL and name in settings.local):
        settings, model = _engine_settings(model, [*settings.models])
        origin = "an engine of its own in this process"
        body = {"ignore_eos": True, **body}  # answers as long as they are wanted
        told = {"further fields": json.dumps(body)}
    target = RouteTarget(settings, model, body=body, length_field=length_field)
    routes = settings.models[model].routes if model in settings.models else (model,)
    hourly = None
    if len(routes) == 1 and routes[0].startswith(f"{LOCAL}/"):
        hourly = settings.local[routes[0].partition("/")[2]].dollars_per_hour
    return _Aim(f"{target.name}; {origin}", lambda: target, told, hourly)


def _engine_settings(weights: str, models: list[str]) -> tuple[Any, str]:
    """Return settings with one engine for these weights, and its route. Raises InputError where there are none."""
    from orchestra.config import parse_config
    from orchestra.localengine.errors import ModelFileError
    from orchestra.localengine.weights.registry import resolve

    try:
        resolve(weights)
    except (ModelFileError, RuntimeError) as error:  # RuntimeError: of ~nobody
        known = f"the settings have {', '.join(models)}" if models else "the settings have no models"
        raise InputError(f"--model {weights}: {known}, and as an engine's weights: {error}") from None
    name = re.sub(r"[^\w.-]+", "-", Path(weights).name) or "engine"
    return parse_config({"local": {name: {"weights": weights}}}), f"local/{name}"


def _mix(
    interactive: tuple[str | None, str | None],
    bulk: tuple[str | None, str | None],
    share: float | None,
    arrivals: str | None,
    seed: int,
) -> Load:
    from orchestra.bench.load.arrivals import Arrivals
    from orchestra.bench.load.lengths import Lengths
    from orchestra.bench.load.workload import Mix, Shape

    prompt, output = (
        Lengths.parse(default if text is None else text)
        for text, default in zip(interactive, (_PROMPT, _OUTPUT), strict=True)
    )
    bulk_prompt, bulk_output = (None if text is None else Lengths.parse(text) for text in bulk)
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


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise InputError(f"--api-key-env: the environment variable {variable} is not set")
    return key
