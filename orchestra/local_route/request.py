"""Read a request, of whichever wire, as one that the in-process engine can serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from orchestra.errors import InputError
from orchestra.local_route.chat_request import read_chat, read_completion
from orchestra.local_route.fields import LocalRequest
from orchestra.local_route.messages_request import read_message
from orchestra.local_route.responses_request import read_response

__all__ = ["Endpoint", "LocalRequest", "endpoint_of", "read_request"]

Endpoint = Literal["chat", "completions", "responses", "messages"]

_PATHS: Mapping[str, Endpoint] = {
    "/chat/completions": "chat",
    "/completions": "completions",
    "/responses": "responses",
    "/messages": "messages",
}
_READERS: Mapping[Endpoint, Callable[[Mapping[str, Any]], LocalRequest]] = {
    "chat": read_chat,
    "completions": read_completion,
    "responses": read_response,
    "messages": read_message,
}


def endpoint_of(url: str) -> Endpoint:
    """Return the endpoint that a URL means. Raises InputError for one that the engine does not answer."""
    path = url.partition("?")[0].rstrip("/")
    for end, endpoint in _PATHS.items():  # the longer of two that end alike comes first
        if path.endswith(end):
            return endpoint
    raise InputError(f"the local engine answers {', '.join(_PATHS)}, not {path!r}")


def read_request(endpoint: Endpoint, payload: Mapping[str, Any] | None) -> LocalRequest:
    """Check every field and return the request. Raises InputError with ``param`` set."""
    if payload is None:
        raise InputError("the request's body is not a JSON object")
    return _READERS[endpoint](payload)
