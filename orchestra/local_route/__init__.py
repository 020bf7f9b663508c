"""The same call, answered by the in-process engine: read the request, run it, write the answer."""

from __future__ import annotations

from orchestra.local_route.route import LocalRoute, open_engine

__all__ = ["LocalRoute", "open_engine"]
