"""What the demo leaves: a table on the terminal, the raw numbers, and the answers of the bulk job."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.bench.results.quantiles import ENOUGH_FOR_P95
from orchestra.cli.demo.recording import PROMISED_RATIO, Figures, Recording, figures_of

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["save_numbers", "table"]

PRICE = (
    "The higher time per output token is the price of a full batch: each step computes bulk rows as well, and the "
    "engine gives them only as much work as keeps a step within its tpot_target_ms."
)


def table(recording: Recording) -> RenderableType:
    """Return the run's figures for a terminal."""
    from rich.console import Group
    from rich.table import Table

    figures = figures_of(recording)
    shown = Table("", box=None, pad_edge=False, header_style="bold")
    for column in ("alone", "beside the bulk job", "ratio"):
        shown.add_column(column, justify="right")
    shown.add_row("interactive questions", str(len(recording.alone)), str(len(recording.loaded)), "")
    for name, alone, loaded in (
        ("time to first token, median", figures.ttft_median_alone, figures.ttft_median_loaded),
        ("time to first token, p95", figures.ttft_p95_alone, figures.ttft_p95_loaded),
        ("time per output token, median", figures.tpot_median_alone, figures.tpot_median_loaded),
    ):
        shown.add_row(name, f"{alone * 1000:.0f} ms", f"{loaded * 1000:.0f} ms", f"{loaded / alone:.2f}x")
    bulk = recording.bulk
    took = bulk.end - bulk.start
    shown.add_row("bulk output", "", f"{figures.bulk_tokens_per_second:.1f} tokens/s", "")
    shown.add_row("bulk lines answered", "", f"{bulk.answered} of {bulk.lines} in {took:.0f} s", "")
    shown.add_row("bulk rows in the batch, mean", "", f"{figures.bulk_rows_mean:.1f}", "")
    parts: list[RenderableType] = [
        shown,
        "",
        verdict(figures, fewest=min(len(recording.alone), len(recording.loaded))),
    ]
    if figures.tpot_median_loaded > figures.tpot_median_alone:
        parts.append(PRICE)
    return Group(*parts)


def verdict(figures: Figures, *, fewest: int) -> str:
    """Return one sentence on the promise: kept, not kept, or that ``fewest`` questions do not tell."""
    if fewest < ENOUGH_FOR_P95:
        return (
            f"[yellow]A quick look:[/] {fewest} questions are too few for a p95, so this says nothing of "
            f"the promise (at most {PROMISED_RATIO:g} times the p95 time to first token alone)."
        )
    said = f"p95 time to first token under full bulk load is {figures.ttft_p95_ratio:.2f} times its value alone"
    if figures.promise_kept:
        return f"[green]Kept:[/] {said} (promised: at most {PROMISED_RATIO:g})."
    return f"[bold red]Not kept:[/] {said}, more than the {PROMISED_RATIO:g} that are promised."


def save_numbers(recording: Recording, path: Path) -> None:
    """Write the figures and everything that they were computed from."""
    numbers = {"figures": figures_of(recording).as_dict(), **asdict(recording)}
    for phase in ("alone", "loaded"):
        for answer, plain in zip(getattr(recording, phase), numbers[phase], strict=True):
            plain["tpot"] = answer.tpot
    path.write_text(json.dumps(numbers, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
