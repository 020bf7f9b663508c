"""``orchestra model info``: what a model is, what it takes, and on demand what it does on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from orchestra.localengine.models.spec import ModelSpec
    from orchestra.localengine.quality.measurement import Measurement

__all__ = ["model_info"]


def model_info(
    weights: Annotated[str, typer.Argument(help="A name from `orchestra model list`, a .gguf file, or a folder.")],
    precision: Annotated[
        Literal["float32", "int8"], typer.Option(help="What its matrices are to be kept in.")
    ] = "float32",
    strict: Annotated[bool, typer.Option("--strict", help="Time the steps of the engine's strict mode.")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Load it and try it: how fast it is, and how good in int8.")
    ] = False,
) -> None:
    """Say what a model is and what it takes: from its header alone, nothing large is read.

    With --measure it is loaded and tried. In int8 its answers are held against its own in float32: on some hundred
    tokens of prose, and on what it says itself. Look at them before you set `precision = "int8"`.
    """
    from rich.console import Console
    from rich.table import Table

    from orchestra.localengine.weights.opening import read_spec
    from orchestra.localengine.weights.registry import resolve

    if strict and not measure:
        raise typer.BadParameter(
            "goes with --measure: it changes the speed and nothing else", param_hint="--strict"
        )
    path = resolve(weights)
    spec = read_spec(path)
    table = Table.grid(padding=(0, 2))
    table.add_row("file", str(path))
    for name, value in _facts(spec, precision):
        table.add_row(name, value)
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    if not measure:
        return

    from orchestra.localengine.config import EngineConfig
    from orchestra.localengine.service.loading import model_opener, prepare_torch

    prepare_torch()
    from orchestra.localengine.quality.measurement import measure_model

    found = measure_model(
        model_opener(weights),
        EngineConfig(precision=precision, strict=strict),
        progress=lambda sentence: typer.echo(f"==> {sentence}", err=True),
    )
    table = Table.grid(padding=(0, 2))
    for name, value in _findings(found):
        table.add_row(name, value)
    console.print(table)


def _facts(spec: ModelSpec, precision: Literal["float32", "int8"]) -> Iterator[tuple[str, str]]:
    from orchestra.localengine.config import EngineConfig
    from orchestra.localengine.models.capacity import (
        available_memory,
        human,
        kv_bytes_per_token,
        plan_capacity,
        weight_bytes,
        weight_values,
    )

    layers = f"{spec.num_layers}"
    if spec.sliding_layers:
        layers += f", {len(spec.sliding_layers)} of them with a window of {spec.sliding_window:,} tokens"
    yield "architecture", spec.architecture
    yield "parameters", f"{weight_values(spec) / 1e6:,.1f} million"
    yield "vocabulary", f"{spec.vocab_size:,} tokens"
    yield "layers", layers
    yield "heads", f"{spec.num_heads} of {spec.head_dim} numbers, on {spec.num_kv_heads} of keys and values"
    yield "context", f"{spec.max_position:,} tokens"
    needed = weight_bytes(spec, precision)
    yield "weights", f"{human(needed)} of memory, in {precision}"
    yield "KV cache", f"{kv_bytes_per_token(spec):,} bytes a token"
    try:
        capacity = plan_capacity(
            spec,
            block_size=EngineConfig().block_size,
            free_bytes=available_memory() - needed,
            precision=precision,
        ).describe()
    except ValueError:
        capacity = f"It does not fit into the {human(available_memory())} that are free now."
    yield "here", capacity


def _findings(found: Measurement) -> Iterator[tuple[str, str]]:
    context = found.context
    for rows, seconds in found.decode_seconds.items():
        requests = "1 request" if rows == 1 else f"{rows} requests"
        speed = f"{seconds * 1000:.0f} ms, {rows / seconds:,.0f} tokens a second"
        yield f"step, {requests}", f"{speed} (with {context} tokens before each)"
    seconds = found.prefill_seconds
    yield "prompt", f"{seconds * 1000:.0f} ms for {context} tokens, {context / seconds:,.0f} a second"
    if (quality := found.quality) is None:
        return
    yield (
        "perplexity",
        f"{quality.perplexity:.2f} over {quality.tokens} tokens of prose; "
        f"in float32 {quality.perplexity_float32:.2f}",
    )
    yield "divergence", f"{quality.divergence:.4f} nats a token from float32 (Kullback-Leibler)"
    yield "likeliest", f"the same token as in float32 at {quality.same_likeliest:.1%} of the places"
    share = f"{quality.same_output} of {quality.output_tokens}"
    yield "own choice", f"the same as float32's at {share} tokens of its greedy outputs, given what came before"
