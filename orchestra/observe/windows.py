"""The ways to look into an `Orchestra` that its settings ask for: ``[observe]`` and ``[metrics]``."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from orchestra.config import Config
from orchestra.errors import ConfigError
from orchestra.extras import install

if TYPE_CHECKING:
    from orchestra.observe.feed import Client

__all__ = ["check_installed", "open_windows"]

_LIBRARIES = {"prometheus": "prometheus_client", "otel": "opentelemetry"}
_log = logging.getLogger(__name__)

Close = Callable[[], None]


def check_installed(config: Config) -> None:
    """Raise ConfigError where the settings ask for an exporter whose library is not installed."""
    for extra, module in _LIBRARIES.items():
        if getattr(config.metrics, extra) and importlib.util.find_spec(module) is None:
            raise ConfigError(f"metrics.{extra} needs a library: {install(extra)}")


def open_windows(client: Client, source: str | None) -> list[Close]:
    """Open what the client's settings ask for, which are from the file ``source``. Returns what closes each.

    Nothing is raised into the application: one that cannot be opened, as where another process of the same
    settings holds the port, is told in a warning, and the others are opened all the same.
    """
    config = client.config
    asked: list[tuple[str, Callable[[], Close]]] = []
    if config.observe.status:
        asked.append(("`orchestra status` will not see this", partial(_beacon, client, source)))
    if config.metrics.otel:
        asked.append(("OpenTelemetry is told nothing", partial(_otel, client)))
    if (address := config.metrics.address) is not None:
        asked.append((f"no page for Prometheus at {config.metrics.prometheus}", partial(_page, client, address)))
    windows: list[Close] = []
    for without, open_one in asked:
        try:
            windows.append(open_one())
        except OSError as error:
            _log.warning("%s: %s", without, error.strerror or error)
        except Exception as error:  # of any library, of any version
            _log.warning("%s: %s: %s", without, type(error).__name__, error, exc_info=error)
    return windows


def _beacon(client: Client, source: str | None) -> Close:
    from orchestra.observe.beacon import Beacon

    return Beacon(client, config=source).close


def _otel(client: Client) -> Close:
    from orchestra.observe.otel import instrument

    return instrument(client)


def _page(client: Client, address: tuple[str, int]) -> Close:
    from orchestra.observe.prometheus import serve

    return serve(client, *address)
