"""One call's way: route -> admit -> send -> settle -> retry, or the next route."""

from __future__ import annotations

from orchestra.dispatch.dispatcher import Dispatcher
from orchestra.dispatch.health import Outage
from orchestra.dispatch.route_table import LocalAnswerer

__all__ = ["Dispatcher", "LocalAnswerer", "Outage"]
