"""Transports that put an Orchestra underneath the clients that official SDKs take.

One module a family, loaded when asked for: ``httpx2`` (openai 3, anthropic, google-genai, mistralai) and ``httpx``
(groq, together, fireworks, openai 2, litellm). Their classes are not interchangeable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

if TYPE_CHECKING:
    import httpx
    import httpx2

    from orchestra.transports.core import TransportCore

__all__ = ["Family", "make_client", "make_transport"]

Family = Literal["httpx2", "httpx"]


@overload
def make_transport(family: Literal["httpx2"], core: TransportCore) -> httpx2.AsyncBaseTransport: ...
@overload
def make_transport(family: Literal["httpx"], core: TransportCore) -> httpx.AsyncBaseTransport: ...
def make_transport(family: Family, core: TransportCore) -> httpx2.AsyncBaseTransport | httpx.AsyncBaseTransport:
    """Return a transport of that family over ``core``. Raises ValueError for a family we do not know."""
    match family:
        case "httpx2":
            from orchestra.transports import httpx2_

            return httpx2_.AsyncOrchestraTransport(core)
        case "httpx":
            from orchestra.transports import httpx_

            return httpx_.AsyncOrchestraTransport(core)
        case _:
            raise ValueError(f"no transport for {family!r}: there are 'httpx2' and 'httpx'")


@overload
def make_client(family: Literal["httpx2"], core: TransportCore) -> httpx2.AsyncClient: ...
@overload
def make_client(family: Literal["httpx"], core: TransportCore) -> httpx.AsyncClient: ...
def make_client(family: Family, core: TransportCore) -> httpx2.AsyncClient | httpx.AsyncClient:
    """Return a client of that family over ``core``, with the defaults of the official SDKs."""
    match family:
        case "httpx2":
            from orchestra.transports import httpx2_

            return httpx2_.make_client(core)
        case "httpx":
            from orchestra.transports import httpx_

            return httpx_.make_client(core)
        case _:
            raise ValueError(f"no client for {family!r}: there are 'httpx2' and 'httpx'")
