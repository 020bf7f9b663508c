"""Transports that put an Orchestra underneath the clients that official SDKs take.

One module a family, loaded when asked for: ``httpx2`` (openai 3, anthropic, google-genai, mistralai) and ``httpx``
(groq, together, fireworks, openai 2, litellm). Their classes are not interchangeable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

if TYPE_CHECKING:
    import httpx
    import httpx2

    from orchestra.transports.blocking import BlockingCore
    from orchestra.transports.core import TransportCore

__all__ = ["Family", "make_client", "make_sync_client", "make_sync_transport", "make_transport"]

Family = Literal["httpx2", "httpx"]


@overload
def make_transport(family: Literal["httpx2"], core: TransportCore) -> httpx2.AsyncBaseTransport: ...
@overload
def make_transport(family: Literal["httpx"], core: TransportCore) -> httpx.AsyncBaseTransport: ...
def make_transport(family: Family, core: TransportCore) -> httpx2.AsyncBaseTransport | httpx.AsyncBaseTransport:
    """Return a transport of that family over ``core``. Raises ValueError for a family we do not know."""
    return _module(family).AsyncOrchestraTransport(core)  # type: ignore[no-any-return]


@overload
def make_sync_transport(family: Literal["httpx2"], core: BlockingCore) -> httpx2.BaseTransport: ...
@overload
def make_sync_transport(family: Literal["httpx"], core: BlockingCore) -> httpx.BaseTransport: ...
def make_sync_transport(family: Family, core: BlockingCore) -> httpx2.BaseTransport | httpx.BaseTransport:
    """Return a synchronous transport of that family over ``core``."""
    return _module(family).OrchestraTransport(core)  # type: ignore[no-any-return]


@overload
def make_client(family: Literal["httpx2"], core: TransportCore) -> httpx2.AsyncClient: ...
@overload
def make_client(family: Literal["httpx"], core: TransportCore) -> httpx.AsyncClient: ...
def make_client(family: Family, core: TransportCore) -> httpx2.AsyncClient | httpx.AsyncClient:
    """Return a client of that family over ``core``, with the defaults of the official SDKs."""
    return _module(family).make_client(core)  # type: ignore[no-any-return]


@overload
def make_sync_client(family: Literal["httpx2"], core: BlockingCore) -> httpx2.Client: ...
@overload
def make_sync_client(family: Literal["httpx"], core: BlockingCore) -> httpx.Client: ...
def make_sync_client(family: Family, core: BlockingCore) -> httpx2.Client | httpx.Client:
    """Return a synchronous client of that family over ``core``, with the defaults of the official SDKs."""
    return _module(family).make_sync_client(core)  # type: ignore[no-any-return]


def _module(family: Family) -> Any:
    match family:
        case "httpx2":
            from orchestra.transports import httpx2_

            return httpx2_
        case "httpx":
            from orchestra.transports import httpx_

            return httpx_
        case _:
            raise ValueError(f"no transport for {family!r}: there are 'httpx2' and 'httpx'")
