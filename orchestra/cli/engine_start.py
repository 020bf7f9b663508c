"""Starts the engines that a job needs, before it is begun: for the commands that run one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestra.client import Orchestra
    from orchestra.config import Config

__all__ = ["is_local", "leaving_at_once", "routes_of", "start_engines"]


async def start_engines(
    orc: Orchestra, models: Iterable[str], *, say: Callable[[str], None], farewell: Callable[[], str]
) -> None:
    """Start the engines that are some model's only route: one that does not start is told before the job is.

    An interrupt ends the process at once, with ``farewell``. Raises InputError where an engine does not start.
    """
    from orchestra.errors import InputError, LocalEngineError

    for model in models:
        if not is_local(orc.config, model):
            continue
        for route in routes_of(orc.config, model):
            say(f"starting the engine of {route}")
            try:
                with leaving_at_once(farewell()):
                    await orc.engine(route.partition("/")[2])
            except LocalEngineError as error:
                raise InputError(f"model {model!r}: {route}: {error}") from error


def routes_of(settings: Config, model: str) -> tuple[str, ...]:
    """Return the routes of a model of the settings, or of one that is named by its route."""
    entry = settings.models.get(model)
    return entry.routes if entry else (model,)


def is_local(settings: Config, model: str) -> bool:
    """Return whether only engines of this process answer for a model."""
    return all(route.startswith("local/") for route in routes_of(settings, model))


@contextmanager
def leaving_at_once(farewell: str) -> Iterator[None]:
    """Let an interrupt end the process where it stands: a model that is being loaded cannot be stopped.

    Only for where nothing has been sent, and the ledger is as it was.
    """

    def leave(number: int, frame: object) -> None:
        sys.stderr.write(f"{farewell}\n")
        sys.stderr.flush()
        os._exit(130)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
