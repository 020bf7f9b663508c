"""How a benchmark ends: what was not measured, and which targets hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

__all__ = ["Verdict", "show_verdicts"]

Verdict = tuple[str, str, str, bool]
"""What a target is about, what it asks, what was measured, and whether it holds."""


def show_verdicts(verdicts: Sequence[Verdict], absent: Mapping[str, str], console: Console) -> None:
    """Print the targets. ``absent`` says why each client or engine is missing that was not measured."""
    for name, why in absent.items():
        console.print(f"{name}: not measured: {why}", markup=False)
    if verdicts:
        table = Table(title="targets", title_justify="left")
        for column in ("what", "asked", "measured", "holds"):
            table.add_column(column)
        for what, asked, measured, holds in verdicts:
            table.add_row(what, asked, measured, "yes" if holds else "NO")
        console.print(table)
