"""Commands whose help shows a flag as what it is: an option that takes no value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

__all__ = ["Command", "Group"]


class Command(TyperCommand):
    """A command, for ``app.command(cls=...)``."""

    def get_params(self, ctx: Any) -> Any:
        return _plain(super().get_params(ctx))


class Group(TyperGroup):
    """A command that has others below it, for ``typer.Typer(cls=...)``."""

    def get_params(self, ctx: Any) -> Any:
        return _plain(super().get_params(ctx))


def _plain(params: Iterable[Any]) -> list[Any]:
    """Return the parameters, the flags without a type: Typer 0.29 would write ``--force <bool>``."""
    params = list(params)
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params
