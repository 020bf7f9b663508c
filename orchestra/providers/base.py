"""What the rest needs to know about a provider's wire. One subclass a dialect; none does I/O or keeps state."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from orchestra.call import Charge, Headers, RateLimit, Usage
from orchestra.policies.retry import Fault
from orchestra.providers.hints import read_limits

__all__ = ["Endpoint", "FormatError", "Provider", "StreamReader"]


class FormatError(ValueError):
    """An answer that calls itself a success is not in the endpoint's format."""


class Endpoint(enum.StrEnum):
    """The endpoints whose bodies we understand. The rest, `OTHER`, is forwarded as it is."""

    CHAT = "/chat/completions"
    COMPLETIONS = "/completions"
    RESPONSES = "/responses"
    EMBEDDINGS = "/embeddings"
    OTHER = ""


class StreamReader(Protocol):
    """Reads one streamed answer as it passes, without delaying what the caller can use.

    ``started`` turns True with the first event that shows content: until then nothing is lost by trying again.
    ``ended`` turns True with the event that ends a complete stream; without it the stream was cut. ``fault`` is
    what an error event in the stream says. ``usage`` is filled in when the stream tells it.
    """

    started: bool
    ended: bool
    fault: Fault | None
    usage: Usage

    def feed(self, data: bytes) -> bytes:
        """Take what came from the wire; return what is to be handed on: whole events.

        Raises FormatError where it is no event stream.
        """
        ...

    def finish(self) -> bytes:
        """Take the end of the body; return what is left to be handed on. Raises FormatError as `feed` does."""
        ...


class Provider(ABC):
    """A dialect: its endpoints, its charge rule, and how it words limits, errors, and usage."""

    @abstractmethod
    def endpoint(self, path: str) -> Endpoint:
        """Return the endpoint that ``path`` (relative to a base URL, without query) names."""

    @abstractmethod
    def credentials(self, key: str) -> Headers:
        """Return the headers that carry an API key."""

    @abstractmethod
    def prepare(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the payload to send: the caller's, or one that also asks for the usage of a stream."""

    @abstractmethod
    def charge(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> Charge:
        """Return what the provider will count when this request arrives, by its documented rule."""

    @abstractmethod
    def settle(self, charge: Charge, usage: Usage) -> Charge:
        """Return what the provider has counted in the end for a request charged with ``charge``."""

    @abstractmethod
    def fault(self, status: int, headers: Headers, body: bytes, now: float) -> Fault:
        """Read an answer that is no success. ``now`` is unix time, for hints that are dates."""

    def limits(self, headers: Headers, now: float) -> list[RateLimit]:
        """Read what an answer, success or not, tells about the account's limits. ``now`` is unix time."""
        return read_limits(headers, now)

    @abstractmethod
    def usage(self, endpoint: Endpoint, body: bytes) -> Usage:
        """Read the usage out of a whole successful answer. Raises FormatError where it is not the endpoint's."""

    @abstractmethod
    def stream(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> StreamReader:
        """Return a reader for the streamed answer to the caller's ``payload``."""
