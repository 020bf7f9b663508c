"""What the rest needs to know about a provider's wire. One subclass a dialect; none does I/O or keeps state."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol
from urllib.parse import quote

from orchestra.call import Charge, Headers, RateLimit, Usage
from orchestra.errors import InputError
from orchestra.policies.fault import Fault
from orchestra.policies.traffic import TrafficClass
from orchestra.providers.hints import read_limits

__all__ = [
    "Endpoint",
    "FormatError",
    "Provider",
    "StreamReader",
    "as_tier",
    "endpoint_at",
    "in_path",
    "operation_at",
]


class FormatError(ValueError):
    """An answer that calls itself a success is not in the endpoint's format."""


class Endpoint(enum.StrEnum):
    """The endpoints whose bodies we understand, by how their paths end. The rest, `OTHER`, is forwarded as it is.

    An endpoint belongs to one wire: whoever does not speak that has no such endpoint.
    """

    CHAT = "/chat/completions"
    COMPLETIONS = "/completions"
    RESPONSES = "/responses"
    EMBEDDINGS = "/embeddings"
    MESSAGES = "/messages"
    GENERATE_CONTENT = ":generateContent"
    STREAM_GENERATE_CONTENT = ":streamGenerateContent"
    EMBED_CONTENT = ":embedContent"
    BATCH_EMBED_CONTENTS = ":batchEmbedContents"
    OTHER = ""


_LONGEST_FIRST = sorted((one for one in Endpoint if one is not Endpoint.OTHER), key=len, reverse=True)


@lru_cache(maxsize=1024)  # each event of a call asks
def endpoint_at(path: str) -> Endpoint:
    """Return the endpoint, of whatever wire, that the path of a URL ends with."""
    return next((one for one in _LONGEST_FIRST if path.rstrip("/").endswith(one)), Endpoint.OTHER)


_OPERATIONS = {
    Endpoint.CHAT: "chat",
    Endpoint.RESPONSES: "chat",
    Endpoint.MESSAGES: "chat",
    Endpoint.COMPLETIONS: "text_completion",
    Endpoint.GENERATE_CONTENT: "generate_content",
    Endpoint.STREAM_GENERATE_CONTENT: "generate_content",
    Endpoint.EMBEDDINGS: "embeddings",
    Endpoint.EMBED_CONTENT: "embeddings",
    Endpoint.BATCH_EMBED_CONTENTS: "embeddings",
}


def operation_at(path: str) -> str | None:
    """Return what the endpoint at ``path`` does, in OpenTelemetry's words (``gen_ai.operation.name``)."""
    return _OPERATIONS.get(endpoint_at(path))


def as_tier(value: Any) -> str | None:
    """Return the name of a service tier as settings spell it, None where ``value`` is none."""
    return value.lower() if isinstance(value, str) else None


def in_path(model: str, safe: str = "") -> str:
    """Return a model's name as a URL's path takes it: quoted, but for ``safe``, so that it names nothing else.

    Raises InputError for one that would lead to another place.
    """
    if not {"", ".", ".."}.isdisjoint(model.split("/")):
        raise InputError(f"the model {model!r} cannot be part of an address", param="model")
    return quote(model, safe=safe)


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

    root: ClassVar[str] = ""
    """What stands between the base URL that the official SDK takes and the path of an endpoint."""
    window: ClassVar[Literal["fixed"] | None] = None
    """How a configured limit comes back where the settings do not say: all at once, or (None) as they default."""
    priorities: ClassVar[Mapping[TrafficClass, int] | None] = None
    """What each class is given as ``priority``, where the account's settings ask for that field."""
    tier_field: ClassVar[str] = "service_tier"
    """The field of a body that asks for a service tier."""
    tiered: ClassVar[frozenset[Endpoint]] = frozenset()
    """The endpoints that take it; none where the provider has no tiers."""
    defaults: ClassVar[Headers] = ()
    """Headers that the provider insists on, for calls that come without."""

    def model_in(self, path: str) -> str | None:
        """Return the model that ``path`` names; None where the body does."""
        return None

    def path_for(self, path: str, model: str) -> str:
        """Return ``path`` with that model in the place where it names one."""
        return path

    def payload_for(self, payload: Mapping[str, Any], model: str) -> Mapping[str, Any]:
        """Return ``payload`` with that model in the places where this wire's bodies name one."""
        return {**payload, "model": model}

    def path_below(self, path: str) -> str:
        """Return where below a base URL belongs what a caller sent to the URL path ``path`` of another host."""
        asked = endpoint_at(path)
        if asked is not Endpoint.OTHER and self.endpoint(asked) is asked:
            return self.root + asked
        _, version, rest = path.rpartition("/v1/")
        return f"{self.root}/{rest}" if version else path

    def meters(self, path: str) -> bool:
        """Return whether a POST to ``path`` that names a model is metered. What is not passes, with our key."""
        return True

    @abstractmethod
    def endpoint(self, path: str) -> Endpoint:
        """Return the endpoint that ``path`` (below a base URL, no query) names; `OTHER` for another wire's."""

    @abstractmethod
    def credentials(self, key: str) -> Headers:
        """Return the headers that carry an API key."""

    @abstractmethod
    def prepare(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the payload to send: the caller's, or one that also asks for the usage of a stream."""

    @abstractmethod
    def charge(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> Charge:
        """Return what the provider will count when this request arrives, by its documented rule.

        It is what is held against the limits, not a forecast of the answer: a provider that counts output only as
        it comes has ``output_tokens`` 0 here however long the answer may get, and one that limits input alone has
        nothing but input in ``tokens``. ``input_tokens`` always estimates the whole prompt, cached or not. What a
        call will cost in money cannot be read from it.
        """

    @abstractmethod
    def settle(self, charge: Charge, usage: Usage) -> Charge:
        """Return what the provider has counted in the end for a request charged with ``charge``.

        By the same rule as `charge`, with the ``usage`` that the answer told: what a provider gives back is no
        longer in it, cached input that it does not count is left out, output is what came. Again no sum of money.
        """

    def tier_asked(self, payload: Mapping[str, Any]) -> str | None:
        """Return the service tier that a body asks for, None where it leaves that to the provider."""
        return as_tier(payload.get(self.tier_field)) if self.tiered else None

    def names_tier(self, payload: Mapping[str, Any]) -> bool:
        """Return whether a body has the field that asks for a service tier, whatever it says there."""
        return self.tier_field in payload

    def tier_told(self, headers: Headers) -> str | None:
        """Return the service tier that an answer's headers name. Most providers name it beside the usage."""
        return None

    @abstractmethod
    def fault(self, status: int, headers: Headers, body: bytes, now: float, *, tier: str | None = None) -> Fault:
        """Read an answer that is no success. ``now`` is unix time, for hints that are dates.

        ``tier`` is the service tier that the call asked for, which at some providers may be what had no room.
        """

    def limits(self, headers: Headers, now: float) -> list[RateLimit]:
        """Read what an answer, success or not, tells about the account's limits. ``now`` is unix time."""
        return read_limits(headers, now)

    @abstractmethod
    def usage(self, endpoint: Endpoint, body: bytes) -> Usage:
        """Read the usage out of a whole successful answer. Raises FormatError where it is not the endpoint's."""

    @abstractmethod
    def stream(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> StreamReader:
        """Return a reader for the streamed answer to the caller's ``payload``."""
