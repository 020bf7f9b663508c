"""``orchestra simulate``: a day of traffic through the settings, in seconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from orchestra.errors import InputError

if TYPE_CHECKING:
    from orchestra.config import Config
    from orchestra.plan.length_mix import LengthMix
    from orchestra.simulate.engine_speed import EngineSpeed
    from orchestra.simulate.outside import Outside
    from orchestra.simulate.traffic import Traffic
    from orchestra.testing import Limits

__all__ = ["simulate"]

_TRAFFIC, _OUTSIDE = "The traffic", "The world outside"
_PROMPT, _OUTPUT = "lognormal:128:0.6:1024", "uniform:32:96"
_LIMITS = {
    "requests": "requests_per_minute",
    "tokens": "tokens_per_minute",
    "input": "input_tokens_per_minute",
    "output": "output_tokens_per_minute",
}
_GENERATED = (
    *("model", "rate", "lasts", "shape", "arrivals", "bulk_share", "timeout", "job"),
    *("prompt", "output", "bulk_prompt", "bulk_output", "max_tokens"),
)
_MOST_SIZES = 1000  # of a recording's calls, that stand for all where an engine is planned
T = TypeVar("T")


def simulate(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="The settings. Default: orchestra.toml, if there is one.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="What all calls ask for. Default: the first of [models].", rich_help_panel=_TRAFFIC
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option("--rate", min=0.0, help="Calls a second, on average.", rich_help_panel=_TRAFFIC)
    ] = 1.0,
    lasts: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long calls come.", rich_help_panel=_TRAFFIC)
    ] = "24h",
    shape: Annotated[
        str,
        typer.Option(
            "--shape",
            help="Of the day: flat, office, or 24 relative rates, one an hour.",
            rich_help_panel=_TRAFFIC,
        ),
    ] = "flat",
    arrivals: Annotated[
        str, typer.Option("--arrivals", help="poisson, constant, or gamma:3 (bursty).", rich_help_panel=_TRAFFIC)
    ] = "poisson",
    bulk_share: Annotated[
        float,
        typer.Option("--bulk-share", min=0.0, max=1.0, help="Share of bulk calls.", rich_help_panel=_TRAFFIC),
    ] = 0.5,
    prompt: Annotated[
        str, typer.Option("--prompt", metavar="LENGTHS", help="Tokens of a prompt.", rich_help_panel=_TRAFFIC)
    ] = _PROMPT,
    output: Annotated[
        str, typer.Option("--output", metavar="LENGTHS", help="Tokens of an answer.", rich_help_panel=_TRAFFIC)
    ] = _OUTPUT,
    bulk_prompt: Annotated[
        str | None,
        typer.Option("--bulk-prompt", metavar="LENGTHS", help="Default: as --prompt.", rich_help_panel=_TRAFFIC),
    ] = None,
    bulk_output: Annotated[
        str | None,
        typer.Option("--bulk-output", metavar="LENGTHS", help="Default: as --output.", rich_help_panel=_TRAFFIC),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            min=1,
            help="The bound on answers that calls name, which some limits count. Default: as each answer is long.",
            rich_help_panel=_TRAFFIC,
        ),
    ] = None,
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="TIME",
            help="How long interactive calls wait to be let go.",
            rich_help_panel=_TRAFFIC,
        ),
    ] = "60s",
    job: Annotated[
        list[str] | None,
        typer.Option(
            "--job",
            metavar="AT:LINES[:DEADLINE]",
            help="A durable job: 02:00:5000:6h comes at two, with 5,000 lines and six hours. May be repeated.",
            rich_help_panel=_TRAFFIC,
        ),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            "--events",
            metavar="F.jsonl",
            help="A recorded log of events instead of all that. Calls take as long as they took, where neither "
            "--ttft nor --tpot is said of their provider.",
            rich_help_panel=_TRAFFIC,
        ),
    ] = None,
    ttft: Annotated[
        list[str] | None,
        typer.Option(
            "--ttft",
            metavar="[PROVIDER=]TIME",
            help="Until an answer begins: 400ms, or 400ms:p50,2s:p95. May be repeated, as those below.",
            rich_help_panel=_OUTSIDE,
        ),
    ] = None,
    tpot: Annotated[
        list[str] | None,
        typer.Option(
            "--tpot", metavar="[PROVIDER=]TIME", help="Between two tokens. Default: 15ms", rich_help_panel=_OUTSIDE
        ),
    ] = None,
    batch_time: Annotated[
        list[str] | None,
        typer.Option(
            "--batch-time",
            metavar="[PROVIDER=]TIME",
            help="How long batches take. Default: 40m:p50,4h:p95",
            rich_help_panel=_OUTSIDE,
        ),
    ] = None,
    failing: Annotated[
        list[str] | None,
        typer.Option(
            "--failing", metavar="[PROVIDER=]SHARE", help="Requests that fail: 1%.", rich_help_panel=_OUTSIDE
        ),
    ] = None,
    outage: Annotated[
        list[str] | None,
        typer.Option(
            "--outage",
            metavar="[PROVIDER=]FROM-TO",
            help="When a provider answers 503: 09:00-09:20.",
            rich_help_panel=_OUTSIDE,
        ),
    ] = None,
    allows: Annotated[
        list[str] | None,
        typer.Option(
            "--allows",
            metavar="PROVIDER=LIMITS",
            help="What a provider enforces, with 429, where that is not what the settings say: "
            "requests:300,tokens:40000 a minute; also input, output, burst (seconds), at_once.",
            rich_help_panel=_OUTSIDE,
        ),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            metavar="NAME=SPEED",
            help="How fast [local.NAME] is: a device as h100 (see `orchestra plan`), or figures: "
            "slots:8,step:20ms,row:1ms,prefill:2000.",
            rich_help_panel=_OUTSIDE,
        ),
    ] = None,
    drain: Annotated[
        str, typer.Option("--drain", metavar="TIME", help="How long to go on after the last call, at most.")
    ] = "24h",
    seed: Annotated[int, typer.Option("--seed", help="Of everything drawn by lot.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="All of it, as one JSON object.")] = False,
) -> None:
    """Let a day of traffic meet your settings, and say what comes of it: waits, refusals, cost, missed deadlines.

    The budget, the routes with their retries and breakers, and the jobs with their batches are the real ones; only
    the network, engines and time are simulated. Nothing is sent, and no key is needed. A day of a call a second
    takes less than a minute. What would happen to the traffic of an office with two jobs in the night:

        orchestra simulate --rate 1 --shape office --job 01:00:20000:8h --job 02:00:5000:24h

    And if the provider fails for twenty minutes, with an engine as the last route:

        orchestra simulate --outage 10:00-10:20 --engine smollm2=slots:8,step:30ms

    The traffic of a program that there was, from the log that it kept by
    `orc.events.subscribe(EventLog("events.jsonl"))` (`orchestra.observe.event_log`), under other settings:

        orchestra simulate --events events.jsonl --config cheaper.toml

    Limits count as the settings say; what a provider does beyond that is told with --allows, --ttft and others.
    Interrupted, it says what it found until then.

    Exit code 0: all jobs kept their deadlines; 1: one did not; 2: bad usage or settings; 130: interrupted.
    """
    from orchestra.cli.settings import find_settings
    from orchestra.simulate.simulation import Simulation

    settings, origin = find_settings(config)
    if events is not None:
        from orchestra.simulate.recording import read_recording

        _check_recorded(context)
        traffic = read_recording(events)
    else:
        traffic = _generated(
            model or _first_model(settings, origin),
            (rate, lasts, shape, arrivals, seed),
            ((prompt, output), (bulk_prompt, bulk_output), bulk_share, max_tokens),
            timeout,
            job or [],
        )
    outside = _outside(
        times=(ttft or [], tpot or [], batch_time or []),
        failing=failing or [],
        outages=outage or [],
        allows=allows or [],
        engines=_engines(engine or [], settings, lambda: _mix(traffic, events is not None, prompt, output)),
    )
    progress = _Progress(traffic.starts_at, traffic.seconds)
    drained = _seconds(drain, "--drain")
    found = Simulation(settings, traffic, outside, seed=seed, drain=drained, progress=progress.show).run()
    progress.clear()
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        from orchestra.cli.simulate_view import show

        show(found, origin)
    raise typer.Exit(130 if found.is_interrupted else 1 if found.missed else 0)


def _check_recorded(context: typer.Context) -> None:
    """Raise InputError where something is said of the traffic beside the log that tells it."""
    for name in _GENERATED:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            option = "for" if name == "lasts" else name.replace("_", "-")
            raise InputError(f"--events tells when calls come, how long and for which model: leave --{option} out")


def _mix(traffic: Traffic, is_recorded: bool, prompt: str, output: str) -> LengthMix:
    """Return the lengths by which an engine is planned: of a recording, or as written."""
    from orchestra.lengths import Lengths
    from orchestra.plan.length_mix import LengthMix, RequestSize

    asked = []
    if is_recorded:
        asked = [ask.size for ask in traffic.calls] + [size for job in traffic.jobs for size in job.lines]
    if not asked:
        return LengthMix.of(Lengths.parse(prompt, "prompt"), Lengths.parse(output, "output"))
    sizes = sorted((size.counted_prompt or size.prompt, max(1, size.output)) for size in asked)
    every = -(-len(sizes) // _MOST_SIZES)
    return LengthMix(tuple(RequestSize(*size) for size in sizes[every // 2 :: every]))


def _first_model(settings: Config, origin: str) -> str:
    if settings.models:
        return next(iter(settings.models))
    raise InputError(f"{origin}: there is no entry in [models]; say what calls ask for: --model PROVIDER/MODEL")


def _generated(
    model: str,
    when: tuple[float, str, str, str, int],
    what: tuple[tuple[str, str], tuple[str | None, str | None], float, int | None],
    timeout: str,
    jobs: Sequence[str],
) -> Traffic:
    from orchestra.bench.load.arrivals import Arrivals
    from orchestra.bench.load.workload import Shape
    from orchestra.lengths import Lengths
    from orchestra.simulate.day_shape import DayShape
    from orchestra.simulate.generated import Generated, PlannedJob

    rate, lasts, shape, arrivals, seed = when
    (prompt, output), bulk, bulk_share, max_tokens = what
    bulk_prompt, bulk_output = (given or usual for given, usual in zip(bulk, (prompt, output), strict=True))
    return Generated(
        model,
        rate,
        Shape(Lengths.parse(prompt, "prompt"), Lengths.parse(output, "output")),
        Shape(Lengths.parse(bulk_prompt, "bulk prompt"), Lengths.parse(bulk_output, "bulk output")),
        bulk_share,
        seconds=_seconds(lasts, "--for"),
        shape=DayShape.parse(shape),
        arrivals=Arrivals.parse(arrivals),
        jobs=[PlannedJob.parse(text) for text in jobs],
        patience=_seconds(timeout, "--timeout"),
        most_output=max_tokens,
        seed=seed,
    ).traffic()


def _outside(
    *,
    times: tuple[Sequence[str], Sequence[str], Sequence[str]],
    failing: Sequence[str],
    outages: Sequence[str],
    allows: Sequence[str],
    engines: Mapping[str, EngineSpeed],
) -> Outside:
    from orchestra.simulate.outside import Outage, Outside
    from orchestra.simulate.times import Times

    ttft, tpot, batch_time = (_by_provider(texts, Times.parse) for texts in times)
    return Outside(
        ttft=ttft,
        tpot=tpot,
        batch_time=batch_time,
        failing=_by_provider(failing, _share),
        outages=[Outage.parse(text) for text in outages],
        allows=_by_provider(allows, _limits),
        engines=engines,
    )


def _by_provider(texts: Sequence[str], parse: Callable[[str], T]) -> dict[str, T]:
    """Return what is said by provider; what names none is said of all."""
    told = (text.rpartition("=") for text in texts)
    return {provider.strip(): parse(value) for provider, _, value in told}


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if 0 <= share <= 1:
            return share
    except ValueError:
        pass
    raise InputError(f"{text!r} is no share: write 1% or 0.01")


def _limits(text: str) -> Limits:
    from orchestra.testing import Limits

    told = dict(part.strip().partition(":")[::2] for part in text.split(","))
    try:
        burst = float(told.pop("burst", "60"))
        at_once = told.pop("at_once", None)
        per_minute = {_LIMITS[name]: float(value) for name, value in told.items()}
        if burst > 0 and all(value > 0 for value in per_minute.values()):
            most = None if at_once is None else int(at_once)
            if most is None or most >= 1:
                return Limits(**per_minute, max_concurrency=most, burst_seconds=burst)  # type: ignore[arg-type]
    except (KeyError, ValueError):
        pass
    raise InputError(
        f"--allows {text!r}: write requests:300,tokens:40000 a minute; there are also input, output, burst "
        "(seconds) and at_once (1 or more)"
    )


def _engines(texts: Sequence[str], settings: Config, mix: Callable[[], LengthMix]) -> dict[str, EngineSpeed]:
    from orchestra.simulate.engine_speed import EngineSpeed

    speeds = {}
    for text in texts:
        name, is_said, speed = text.partition("=")
        if not is_said or name not in settings.local:
            known = ", ".join(sorted(settings.local)) or "none"
            raise InputError(f"--engine {text!r}: write NAME=SPEED, for one of [local]; there is: {known}")
        speeds[name] = EngineSpeed.parse(speed) if ":" in speed else _planned(settings, name, speed, mix())
    return speeds


def _planned(settings: Config, name: str, device: str, mix: LengthMix) -> EngineSpeed:
    """Return the speed of an engine on a device of the table, as `orchestra plan` has it."""
    from orchestra.local_route.route import engine_config
    from orchestra.localengine.settled_config import SettledConfig
    from orchestra.plan.device import find_device
    from orchestra.plan.models import read_model
    from orchestra.plan.report import Wanted, make_plan
    from orchestra.simulate.engine_speed import EngineSpeed

    local = settings.local[name]
    title, spec = read_model(local.weights)
    runs_on = find_device(device).reaching(0.7)
    made = make_plan(title, spec, runs_on, Wanted(mix=mix, precision="bfloat16"), on_cpu=False)
    settled = SettledConfig.on_gpu(
        engine_config(local, settings.traffic),
        free=runs_on.memory,
        total=runs_on.memory,
        vocab_size=spec.vocab_size,
    )
    return EngineSpeed.of_plan(made, settled.max_num_seqs)


def _seconds(text: str, option: str) -> float:
    from orchestra.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


class _Progress:
    """Which hour it is, on a terminal."""

    def __init__(self, starts_at: float, seconds: float) -> None:
        self._starts_at, self._seconds = starts_at, seconds

    def show(self, second: float) -> None:
        import sys

        if sys.stderr.isatty():
            from orchestra.simulate.clock_time import format_clock_time

            share = min(1.0, (second - self._starts_at) / self._seconds) if self._seconds else 1.0
            sys.stderr.write(f"\r\033[K{format_clock_time(second)}  {share:.0%}")
            sys.stderr.flush()

    def clear(self) -> None:
        import sys

        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K")
