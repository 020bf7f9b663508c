"""The Anthropic wire: Messages.

Sources: platform.claude.com/docs, pages "Rate limits", "Errors", "Streaming", "Prompt caching"; types of the
official SDK (anthropic 2.14).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestra.call import Charge, Headers, Usage, read_json
from orchestra.policies.fault import Fault, Recovery
from orchestra.providers.anthropic_stream import MessagesStreamReader, read_usage
from orchestra.providers.base import Endpoint, FormatError, Provider, StreamReader
from orchestra.providers.estimate import estimate_tokens
from orchestra.providers.event_reader import PlainStreamReader
from orchestra.providers.faults import error_object, status_fault
from orchestra.providers.hints import demanded_wait

__all__ = ["STATUS_OF", "Anthropic"]

_INPUTS = ("system", "messages", "tools", "output_config", "output_format")
_SPEND_LIMIT = "spend_limit_reached"
_OWN_SPEND_LIMIT = "You have reached your specified API usage limits"
STATUS_OF = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class Anthropic(Provider):
    """Anthropic itself, and servers that speak its wire.

    Its limit of input tokens estimates the prompt when a request arrives, and in the end counts what was not read
    from the cache. Its limit of output tokens counts them as they come, so that ``max_tokens`` holds nothing back.
    Token counting, models, files and batches pass unmetered: they have limits of their own.
    """

    root = "/v1"
    tiered = frozenset({Endpoint.MESSAGES})
    defaults = (("anthropic-version", "2023-06-01"),)

    def endpoint(self, path: str) -> Endpoint:
        return Endpoint.MESSAGES if path.rstrip("/").removeprefix(self.root) == "/messages" else Endpoint.OTHER

    def meters(self, path: str) -> bool:
        return self.endpoint(path) is not Endpoint.OTHER

    def path_below(self, path: str) -> str:
        _, version, rest = path.rpartition(f"{self.root}/")
        return version + rest

    def credentials(self, key: str) -> Headers:
        return (("x-api-key", key),)

    def prepare(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        return payload  # a stream tells its usage unasked

    def charge(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> Charge:
        prompt = estimate_tokens([payload[name] for name in _INPUTS if name in payload])
        return Charge(tokens=prompt, input_tokens=prompt)

    def settle(self, charge: Charge, usage: Usage) -> Charge:
        # Claude Haiku 3.5 alone counts what it read from the cache, too: its headers set that right.
        counted = max(0, usage.input_tokens - usage.cached_tokens)
        return Charge(charge.requests, counted + usage.output_tokens, counted, usage.output_tokens)

    def fault(self, status: int, headers: Headers, body: bytes, now: float, *, tier: str | None = None) -> Fault:
        return self.error_fault(status, headers, error_object(body), now)

    def error_fault(self, status: int, headers: Headers, error: Mapping[str, Any], now: float) -> Fault:
        """Read an error object, whether it came as an answer or, with no headers, as an event of a stream."""
        details = error.get("details")
        code = details.get("error_code") if isinstance(details, Mapping) else None
        words = [word for word in (code, error.get("type")) if isinstance(word, str)]
        reason = " ".join([str(status), *words[:1]])
        code = words[0] if words else ""
        if code.endswith(_SPEND_LIMIT) or str(error.get("message", "")).startswith(_OWN_SPEND_LIMIT):
            return Fault(Recovery.PAUSE, reason, elsewhere=True)
        if code.startswith("cmek_"):  # the customer's own encryption key is out of reach
            return Fault(Recovery.NONE, reason, elsewhere=True)
        # A limit's reset is when it is full again, which is no reason to wait for it.
        demanded = demanded_wait(headers, error, now)
        return status_fault(status, reason, wait=demanded, demanded=demanded)

    def usage(self, endpoint: Endpoint, body: bytes) -> Usage:
        if endpoint is Endpoint.OTHER:
            return Usage()
        try:
            answer = read_json(body)
        except ValueError:
            raise FormatError("the answer is not JSON") from None
        if not isinstance(answer, dict) or not isinstance(answer.get("content"), list):
            told = str(error_object(body).get("message", ""))[:200]
            raise FormatError("the answer is no message" + (f" but says: {told}" if told else ""))
        return read_usage(answer.get("usage"))

    def stream(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> StreamReader:
        return PlainStreamReader() if endpoint is Endpoint.OTHER else MessagesStreamReader(self._event_fault)

    def _event_fault(self, error: Mapping[str, Any]) -> Fault:
        """Read an error event. It has no status of its own: its type stands for one."""
        kind = error.get("type")
        status = STATUS_OF.get(kind, 500) if isinstance(kind, str) else 500
        return self.error_fault(status, (), error, 0.0)
