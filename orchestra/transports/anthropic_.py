"""The attachment to the anthropic SDK that needs no ``http_client``: its middleware.

A middleware is shown a request of the SDK's own kind, and what would send it; not the client, which alone knows
the key, the address and the headers. So the client is looked up behind ``call_next``, and a copy of it, which
differs in nothing but that its ``http_client`` is ours, sends the request. Where the client is over our transport
already, nothing changes, and nothing happens twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import Any

from orchestra.errors import ConfigError

__all__ = ["make_middleware"]


def make_middleware(make_async: Callable[[], Any], make_sync: Callable[[], Any]) -> Any:
    """Return a middleware that sends by the HTTP clients which ``make_async`` and ``make_sync`` make.

    Raises ConfigError where the anthropic SDK is not installed, or has no middleware.
    """
    try:
        base = import_module("anthropic").Middleware
    except (ImportError, AttributeError):
        raise ConfigError("anthropic_middleware() needs the anthropic SDK: pip install 'anthropic>=2'") from None
    return type("OrchestraMiddleware", (_Attachment, base), {})(make_async, make_sync)


class _Attachment:
    """The middleware, for synchronous and asynchronous clients."""

    def __init__(self, make_async: Callable[[], Any], make_sync: Callable[[], Any]) -> None:
        self._make_async = make_async
        self._make_sync = make_sync

    @cached_property
    def _async_client(self) -> Any:
        return self._make_async()

    @cached_property
    def _sync_client(self) -> Any:
        return self._make_sync()

    def handle(self, request: Any, call_next: Any) -> Any:
        def hand_back(request: Any, call_next: Any) -> Any:
            return call_next

        ours = _client_behind(call_next).copy(http_client=self._sync_client, middleware=[hand_back])
        # A middleware's answer is returned as it is, so this is how the copy's own ``call_next`` can be had.
        return ours.get("/", cast_to=object)(request)

    async def handle_async(self, request: Any, call_next: Any) -> Any:
        async def hand_back(request: Any, call_next: Any) -> Any:
            return call_next

        ours = _client_behind(call_next).copy(http_client=self._async_client, middleware=[hand_back])
        return await (await ours.get("/", cast_to=object))(request)


def _client_behind(call_next: Any) -> Any:
    """Return the client that ``call_next`` sends by. Raises ConfigError where it cannot be found."""
    open_ends, seen = [call_next], set()
    while open_ends:
        function = open_ends.pop()
        seen.add(id(function))
        for cell in getattr(function, "__closure__", None) or ():
            held = cell.cell_contents
            if callable(getattr(held, "with_options", None)):
                return held
            if id(held) not in seen and callable(held):
                open_ends.append(held)
    raise ConfigError(
        "this version of the anthropic SDK shows its client to no middleware: give it "
        "http_client=orc.http_client() instead"
    )
