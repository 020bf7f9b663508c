"""The OpenAI wire, at OpenAI itself and at the many servers that speak it.

Sources: OpenAI guides "Rate limits", "Error codes", "Streaming"; types of the official SDK (openai 3.57). Whoever
speaks it with differences has a small class beside this file. `OpenAICompatible` stands for the rest, so what is
read here covers every form in use: an integer ``code``, an error object without its wrapper, a refusal as the
first event of a stream with status 200, a stream's usage under ``x_groq``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orchestra.call import Charge, Headers, Usage, read_json
from orchestra.policies.fault import Fault, Recovery
from orchestra.providers.base import Endpoint, FormatError, Provider, StreamReader
from orchestra.providers.estimate import estimate_tokens
from orchestra.providers.event_reader import PlainStreamReader
from orchestra.providers.faults import error_object, status_fault
from orchestra.providers.hints import demanded_wait, retry_after
from orchestra.providers.openai_stream import ChatStreamReader, ResponsesStreamReader, read_usage

__all__ = ["OpenAI", "OpenAICompatible", "used_by"]

_QUOTA_CODES = frozenset(
    {
        "insufficient_quota",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "billing_hard_limit_reached",
    }
)
_STATUS_OF = {
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "tokens": 429,
    "requests": 429,
    "insufficient_quota": 429,
    "service_unavailable_error": 503,
    "server_is_overloaded": 503,
    "ServiceUnavailableError": 503,
}
_NO_FLEX = 498
"""Groq's own status: it has no flex capacity just now."""
_INPUTS = ("messages", "prompt", "input", "instructions", "tools", "functions", "response_format", "text")
_MAX_OUTPUTS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_LARGEST_COUNT = 10**9
_OUTPUT_GUESS = 256
"""Output tokens expected of a call that does not bound them. Corrected when it is settled."""
_ANSWER_FIELD = {
    Endpoint.CHAT: "choices",
    Endpoint.COMPLETIONS: "choices",
    Endpoint.RESPONSES: "output",
    Endpoint.EMBEDDINGS: "data",
}
_ADMINISTRATION = re.compile(r"(?:/openai)?/(?:batch|batches|evals|files|fine_tuning|models|uploads)(?:/|$)")
"""What may be sent there spends no limit of requests a minute, even where it names a model."""


class OpenAI(Provider):
    """OpenAI itself.

    It counts the larger of the output bound and an estimate from the characters when a request arrives, and
    documents no refund: a request that used less stays charged, and one that used more goes into debt.
    """

    tiered = frozenset({Endpoint.CHAT, Endpoint.RESPONSES})
    asks_for_usage = True
    """Whether a stream tells its usage only where ``stream_options`` ask for it."""

    def endpoint(self, path: str) -> Endpoint:
        try:
            endpoint = Endpoint(path.removeprefix(self.root).rstrip("/"))
        except ValueError:
            return Endpoint.OTHER
        return endpoint if endpoint in _ANSWER_FIELD else Endpoint.OTHER

    def meters(self, path: str) -> bool:
        return not _ADMINISTRATION.match(path.removeprefix(self.root))

    def credentials(self, key: str) -> Headers:
        return (("authorization", f"Bearer {key}"),)

    def prepare(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        if endpoint not in (Endpoint.CHAT, Endpoint.COMPLETIONS) or payload.get("stream") is not True:
            return payload
        options = payload.get("stream_options")
        if not self.asks_for_usage or _asks_for_usage(payload) or not isinstance(options, Mapping | None):
            return payload
        return {**payload, "stream_options": {**(options or {}), "include_usage": True}}

    def charge(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> Charge:
        prompt, output, bound, answers = _sizes(endpoint, payload)
        return Charge(tokens=max(prompt, bound) * answers, input_tokens=prompt, output_tokens=output * answers)

    def settle(self, charge: Charge, usage: Usage) -> Charge:
        used = used_by(charge, usage)
        return Charge(used.requests, max(charge.tokens, used.tokens), used.input_tokens, used.output_tokens)

    def fault(self, status: int, headers: Headers, body: bytes, now: float, *, tier: str | None = None) -> Fault:
        return self.error_fault(status, headers, error_object(body), now)

    def error_fault(self, status: int, headers: Headers, error: Mapping[str, Any], now: float) -> Fault:
        """Read an error object, whether it came as an answer or, with no headers, as an event of a stream."""
        words = [word for name in ("code", "type") if isinstance(word := error.get(name), str)]
        reason = " ".join([str(status), *(word for word in words[:1] if word != str(status))])
        if _QUOTA_CODES.intersection(words):
            return Fault(Recovery.PAUSE, reason, elsewhere=True)
        return status_fault(
            status,
            reason,
            wait=retry_after(headers, error, now),
            demanded=demanded_wait(headers, error, now),
            of_tier=status == _NO_FLEX or (status == 429 and "resource_unavailable" in words),
        )

    def usage(self, endpoint: Endpoint, body: bytes) -> Usage:
        try:
            answer = read_json(body)
        except ValueError:
            raise FormatError("the answer is not JSON") from None
        if endpoint not in _ANSWER_FIELD:
            return self.read_usage(answer) if isinstance(answer, dict) else Usage()
        field = _ANSWER_FIELD[endpoint]
        if not isinstance(answer, dict) or not isinstance(answer.get(field), list):
            told = str(error_object(body).get("message", ""))[:200]
            raise FormatError(f"the answer has no list {field!r}" + (f" but says: {told}" if told else ""))
        return self.read_usage(answer)

    def read_usage(self, answer: Mapping[str, Any]) -> Usage:
        """Return the usage that an answer, or a chunk of one, reports."""
        return read_usage(answer)

    def stream(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> StreamReader:
        match endpoint:
            case Endpoint.CHAT | Endpoint.COMPLETIONS:
                return ChatStreamReader(
                    fault_of=self._event_fault,
                    usage_of=self.read_usage,
                    keep_usage=_asks_for_usage(payload),
                    choices=_choices_asked(payload),
                )
            case Endpoint.RESPONSES:
                return ResponsesStreamReader(fault_of=self._event_fault, usage_of=self.read_usage)
            case _:
                return PlainStreamReader()

    def _event_fault(self, error: Mapping[str, Any]) -> Fault:
        """Read an error event. It has no status of its own: its code is one, or its words tell."""
        code = error.get("code")
        if isinstance(code, str) and code.isascii() and code.isdigit():
            code = int(code)
        if isinstance(code, int) and 400 <= code < 600:
            return self.error_fault(code, (), error, 0.0)
        words = (error.get("code"), error.get("type"))
        status = next((_STATUS_OF[word] for word in words if isinstance(word, str) and word in _STATUS_OF), 500)
        return self.error_fault(status, (), error, 0.0)


class OpenAICompatible(OpenAI):
    """Any other server of that wire. It is taken to count what a call really used, input and output together."""

    def charge(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> Charge:
        prompt, output, _, answers = _sizes(endpoint, payload)
        return Charge(tokens=prompt + output * answers, input_tokens=prompt, output_tokens=output * answers)

    def settle(self, charge: Charge, usage: Usage) -> Charge:
        return used_by(charge, usage)


def used_by(charge: Charge, usage: Usage) -> Charge:
    """Return ``charge`` as if it had been for what was used."""
    total = usage.input_tokens + usage.output_tokens
    return Charge(charge.requests, total, usage.input_tokens, usage.output_tokens)


def _asks_for_usage(payload: Mapping[str, Any]) -> bool:
    options = payload.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True


def _choices_asked(payload: Mapping[str, Any]) -> int:
    """Return how many choices an answer has: ``n`` for each prompt, of which only completions may have several."""
    prompt = payload.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    return prompts * (_count(payload.get("n")) or 1)


def _sizes(endpoint: Endpoint, payload: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return the estimated prompt, the expected output of one answer, its bound (0 if none), and the answers.

    Where we do not know what an endpoint counts (images, speech, moderations, ...), a call is a request without
    tokens.
    """
    if endpoint not in _ANSWER_FIELD:
        return 0, 0, 0, 1
    prompt = estimate_tokens([payload[name] for name in _INPUTS if name in payload])
    if endpoint is Endpoint.EMBEDDINGS:
        return prompt, 0, 0, 1
    bound = next((size for name in _MAX_OUTPUTS if (size := _count(payload.get(name))) is not None), None)
    answers = max(_count(payload.get("n")) or 1, _count(payload.get("best_of")) or 1)
    prompts = payload.get("prompt")
    if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
        answers *= len(prompts)
    return prompt, _OUTPUT_GUESS if bound is None else bound, bound or 0, answers


def _count(value: Any) -> int | None:
    """Return a count, None where it is none, or larger than anybody means: that is the provider's to refuse."""
    return value if type(value) is int and 0 <= value <= _LARGEST_COUNT else None
