"""The ways to look into an `Orchestra` that its settings ask for: ``[observe]`` and ``[metrics]``."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestra.config import Config
from orchestra.errors import ConfigError

if TYPE_CHECKING:
    from orchestra.observe.feed import Client

__all__ = ["check_installed", "open_windows"]

_LIBRARIES = {"prometheus": "prometheus_client", "otel": "opentelemetry"}
_log = logging.getLogger(__name__)


def check_installed(config: Config) -> None:
    """Raise ConfigError where the settings ask for an exporter whose library is not installed."""
    for extra, module in _LIBRARIES.items():
        if getattr(config.metrics, extra) and importlib.util.find_spec(module) is None:
            raise ConfigError(f"metrics.{extra} needs a library: pip install 'orchestra-llm[{extra}]'")


def open_windows(client: Client, source: str | None) -> list[Callable[[], None]]:
    """Open what the client's settings ask for, which are from the file ``source``. Returns what closes each.

    Nothing is raised into the application: where a port is taken, which another process of the same settings may
    hold, a warning says so.
    """
    config = client.config
    windows: list[Callable[[], None]] = []
    if config.observe.status:
        from orchestra.observe.beacon import Beacon

        windows.append(Beacon(client, config=source).close)
    if config.metrics.otel:
        from orchestra.observe.otel import instrument

        windows.append(instrument(client))
    if (address := config.metrics.address) is not None:
        from orchestra.observe.prometheus import serve

        try:
            windows.append(serve(client, *address))
        except OSError as error:
            _log.warning("no page for Prometheus at %s: %s", config.metrics.prometheus, error.strerror or error)
    return windows
