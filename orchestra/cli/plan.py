"""``orchestra plan``: what fits on a device, how fast it is there, and what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestra.cli.duration_option import duration_option
from orchestra.errors import InputError
from orchestra.lengths import LENGTHS_HELP

if TYPE_CHECKING:
    from orchestra.plan.cost import HostedPrice
    from orchestra.plan.length_mix import LengthMix

__all__ = ["plan"]

THIS = "this"
_OF_PEAK = 0.7  # what good kernels reach of a GPU's bandwidth, and of its products when they are large
_DEFAULT_PROMPT, _DEFAULT_OUTPUT = "200:p50,1500:p95", "150:p50,500:p95"


def _say_names(asked: bool) -> None:
    if asked:
        from orchestra.plan.device import DEVICES
        from orchestra.plan.models import SHAPES

        typer.echo(f"models   {', '.join(SHAPES)}")
        typer.echo(f"devices  {THIS}, {', '.join(DEVICES)}")
        raise typer.Exit


def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="A name as llama-3.1-8b, a config.json, a .gguf file, or a folder. --list says all names."
        ),
    ],
    device: Annotated[
        str,
        typer.Option("--device", help="A GPU as h100, or `this`: this machine's CPU, measured. --list says all."),
    ] = THIS,
    dtype: Annotated[
        Literal["float32", "int8", "bfloat16", "float16"] | None,
        typer.Option("--dtype", help="What matrices are kept in. Default: float32 on a CPU, bfloat16 on a GPU."),
    ] = None,
    kv_dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "float8"] | None,
        typer.Option("--kv-dtype", help="What keys and values are kept in. Default: as the engine does."),
    ] = None,
    kv_bytes: Annotated[
        int | None, typer.Option("--kv-bytes", min=1, help="Memory for the KV cache. Default: as the engine does.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="LENGTHS",
            help=f"Tokens of a prompt: {LENGTHS_HELP}. Default: {_DEFAULT_PROMPT}",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="LENGTHS", help=f"Tokens of an output. Default: {_DEFAULT_OUTPUT}"),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", help="Lengths of real requests: JSON lines with `usage`, as `orchestra run` writes."
        ),
    ] = None,
    tpot: Annotated[
        str | None, typer.Option("--tpot", metavar="TIME", help="The longest time between two tokens: 50ms.")
    ] = None,
    of_peak: Annotated[
        float | None,
        typer.Option("--of-peak", help="The share of its vendor's figures that a GPU reaches. Default: 0.7"),
    ] = None,
    per_hour: Annotated[
        float | None, typer.Option("--per-hour", metavar="DOLLARS", help="What the device costs an hour.")
    ] = None,
    compare_in: Annotated[
        float | None,
        typer.Option("--compare-in", metavar="DOLLARS", help="A provider's price for 1M input tokens."),
    ] = None,
    compare_out: Annotated[
        float | None, typer.Option("--compare-out", metavar="DOLLARS", help="And for 1M output tokens.")
    ] = None,
    batch_discount: Annotated[
        str | None, typer.Option("--batch-discount", metavar="50%", help="How much less its batches cost.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All of it, as one JSON object.")] = False,
    names: Annotated[
        bool,
        typer.Option(
            "--list", is_eager=True, callback=_say_names, help="Say which models and devices have a name, and end."
        ),
    ] = False,
) -> None:
    """Say what fits on a device, how fast it is there, what limits it, and what a million tokens cost.

    Nothing is downloaded, and no GPU is needed: models and devices are tables, and the rest is arithmetic (a
    roofline) on what each step reads and computes. An 8B model on an H100 at 2.50 dollars an hour, say, for
    prompts of 200 tokens, of which one in twenty has 1,500 or more:

        orchestra plan llama-3.1-8b --device h100 --per-hour 2.50 --prompt 200:p50,1500:p95

    To hold it against a provider's price and that of its batches, add:

        --compare-in 0.15 --compare-out 0.60 --batch-discount 50%

    And what the engine does on this machine, measured in some seconds:

        orchestra plan smollm2-135m --prompt 100 --output 50
    """
    from orchestra.plan.device import find_device
    from orchestra.plan.models import read_model
    from orchestra.plan.report import Wanted, make_plan
    from orchestra.plan.this_machine import measure_this_machine, note_on_load

    on_cpu = device == THIS
    if on_cpu and of_peak is not None:
        raise InputError("--of-peak is for GPUs of the table: this machine is measured")
    found = None if on_cpu else find_device(device).reaching(_OF_PEAK if of_peak is None else of_peak)
    wanted = Wanted(
        mix=_mix(prompt, output, trace),
        precision=dtype or ("float32" if on_cpu else "bfloat16"),
        kv_dtype=kv_dtype,
        kv_bytes=kv_bytes,
        tpot_seconds=None if tpot is None else duration_option("--tpot", tpot),
        per_hour=per_hour,
        hosted=_hosted(compare_in, compare_out, batch_discount, per_hour),
    )
    name, spec = read_model(model)
    if found is None:
        if wanted.precision in ("bfloat16", "float16"):
            raise InputError(f"on a CPU the engine computes in float32 or int8, not in {wanted.precision}")
        if not as_json:
            typer.echo("==> measuring this machine's CPU", err=True)
        if note := note_on_load():
            typer.echo(note, err=True)
        found = measure_this_machine(spec, wanted.precision)
    made = make_plan(name, spec, found, wanted, on_cpu=on_cpu)
    if as_json:
        import json

        typer.echo(json.dumps(made.as_json(), indent=2))
        return
    from orchestra.cli.plan_view import show

    show(made)


def _mix(prompt: str | None, output: str | None, trace: Path | None) -> LengthMix:
    from orchestra.lengths import Lengths
    from orchestra.plan.length_mix import LengthMix

    if trace is None:
        return LengthMix.of(
            Lengths.parse(_DEFAULT_PROMPT if prompt is None else prompt, "prompt"),
            Lengths.parse(_DEFAULT_OUTPUT if output is None else output, "output"),
        )
    if prompt is not None or output is not None:
        raise InputError("--trace tells all lengths: leave --prompt and --output out")
    try:
        with trace.open(encoding="utf-8", errors="replace") as lines:
            return LengthMix.of_trace(lines, str(trace))
    except OSError as error:
        raise InputError(f"{trace} cannot be read: {error.strerror}") from None


def _hosted(
    compare_in: float | None, compare_out: float | None, discount: str | None, per_hour: float | None
) -> HostedPrice | None:
    from orchestra.plan.cost import HostedPrice

    if compare_in is None and compare_out is None:
        if discount is not None:
            raise InputError("--batch-discount goes with --compare-in and --compare-out")
        return None
    if compare_in is None or compare_out is None:
        raise InputError("--compare-in and --compare-out go together")
    if per_hour is None:
        raise InputError("to compare with a hosted price, say what the device costs: --per-hour 2.50")
    return HostedPrice(input=compare_in, output=compare_out, batch_discount=_share(discount or "0"))


def _share(text: str) -> float:
    """``50%`` or ``0.5``."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise InputError(f"a discount is written 50% or 0.5, not {text[:40]!r}") from None
