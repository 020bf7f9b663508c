"""The `Orchestra` that a whole process shares: default settings, limits learned from the answers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal, overload

from orchestra.client import Orchestra

if TYPE_CHECKING:
    import httpx
    import httpx2

__all__ = ["anthropic_middleware", "http_client", "sync_http_client"]

_default: Orchestra | None = None
_default_lock = threading.Lock()


@overload
def http_client(family: Literal["httpx2"] = "httpx2") -> httpx2.AsyncClient: ...
@overload
def http_client(family: Literal["httpx"]) -> httpx.AsyncClient: ...
def http_client(family: Literal["httpx2", "httpx"] = "httpx2") -> httpx2.AsyncClient | httpx.AsyncClient:
    """Return a client of the `Orchestra` that the whole process shares, which has the default settings."""
    return _shared().http_client(family)


@overload
def sync_http_client(family: Literal["httpx2"] = "httpx2") -> httpx2.Client: ...
@overload
def sync_http_client(family: Literal["httpx"]) -> httpx.Client: ...
def sync_http_client(family: Literal["httpx2", "httpx"] = "httpx2") -> httpx2.Client | httpx.Client:
    """Return a synchronous client of the `Orchestra` that the whole process shares."""
    return _shared().sync_http_client(family)


def anthropic_middleware() -> Any:
    """Return the middleware of the `Orchestra` that the whole process shares: see its method of that name."""
    return _shared().anthropic_middleware()


def _shared() -> Orchestra:
    global _default
    with _default_lock:
        if _default is None:
            _default = Orchestra()
    return _default
