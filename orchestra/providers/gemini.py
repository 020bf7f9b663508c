"""The wire of Google's Gemini API: generateContent and embeddings.

Sources: ai.google.dev/gemini-api/docs, pages "Rate limits", "Troubleshooting", "Thinking", "Context caching";
google-genai 3.6.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from functools import cache
from typing import Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from orchestra.call import Charge, Headers, RateLimit, Usage, read_json
from orchestra.policies.fault import Fault, Recovery
from orchestra.providers.base import Endpoint, FormatError, Provider, StreamReader, as_tier, in_path
from orchestra.providers.estimate import estimate_tokens
from orchestra.providers.event_reader import PlainStreamReader
from orchestra.providers.faults import error_object, status_fault
from orchestra.providers.gemini_stream import ContentStreamReader, read_usage
from orchestra.providers.hints import demanded_wait

__all__ = ["Gemini"]

_PATH = re.compile(r"(?P<folder>/(?:tunedM|m)odels)/(?P<model>[^:]+)(?P<verb>:\w+)/?")
_VERSION = re.compile(r"/v\d+(?:alpha|beta)?(?=/)")
_CONTENTS = (Endpoint.GENERATE_CONTENT, Endpoint.STREAM_GENERATE_CONTENT)
_ENDPOINTS = frozenset({*_CONTENTS, Endpoint.EMBED_CONTENT, Endpoint.BATCH_EMBED_CONTENTS})
_INPUTS = ("contents", "systemInstruction", "system_instruction", "tools", "content")
_SCHEMAS = ("responseSchema", "response_schema", "responseJsonSchema", "response_json_schema")
_ANSWER_FIELDS = {
    Endpoint.GENERATE_CONTENT: ("candidates", "promptFeedback", "usageMetadata"),
    Endpoint.STREAM_GENERATE_CONTENT: ("candidates", "promptFeedback", "usageMetadata"),
    Endpoint.EMBED_CONTENT: ("embedding", "embeddings"),
    Endpoint.BATCH_EMBED_CONTENTS: ("embeddings",),
}
_FLEX = "flex"
_STATUS_OF = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


class Gemini(Provider):
    """Google's Gemini API, whose models stand in the URL: ``/v1beta/models/{model}:generateContent``.

    Its limits of tokens count input alone, cached or not. It tells nothing of them in headers. A quota of a day is
    given anew at midnight Pacific time, whatever shorter wait a refusal names. Token counting, files, caches and
    batches pass unmetered.
    """

    root = "/v1beta"
    tier_field = "serviceTier"
    tiered = frozenset(_CONTENTS)

    def model_in(self, path: str) -> str | None:
        asked = _PATH.search(path)
        if asked is None:
            return None
        model = unquote(asked["model"])
        return model if asked["folder"] == "/models" else f"tunedModels/{model}"

    def path_for(self, path: str, model: str) -> str:
        return _PATH.sub(lambda asked: f"/{in_path(_resource(model), safe='/')}{asked['verb']}", path)

    def payload_for(self, payload: Mapping[str, Any], model: str) -> Mapping[str, Any]:
        # A body need not name the model; where it does, it must be the URL's.
        named = {**payload, "model": _resource(model)} if "model" in payload else payload
        requests = named.get("requests")
        if not isinstance(requests, list):
            return named
        return {**named, "requests": [self._one_for(request, model) for request in requests]}

    def _one_for(self, request: Any, model: str) -> Any:
        return self.payload_for(request, model) if isinstance(request, Mapping) else request

    def path_below(self, path: str) -> str:
        asked = _PATH.search(path)
        versions = list(_VERSION.finditer(path))
        if versions and (asked is None or versions[-1].end() == asked.start()):
            return path[versions[-1].start() :]
        return path if asked is None else self.root + asked[0]

    def endpoint(self, path: str) -> Endpoint:
        asked = _PATH.search(path)
        verb = asked["verb"] if asked is not None else ""
        return Endpoint(verb) if verb in _ENDPOINTS else Endpoint.OTHER

    def meters(self, path: str) -> bool:
        return self.endpoint(path) is not Endpoint.OTHER

    def credentials(self, key: str) -> Headers:
        return (("x-goog-api-key", key),)

    def prepare(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        return payload  # a stream tells its usage unasked

    def charge(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> Charge:
        prompt = estimate_tokens(list(_inputs(payload)))
        return Charge(tokens=prompt, input_tokens=prompt)

    def settle(self, charge: Charge, usage: Usage) -> Charge:
        return Charge(charge.requests, usage.input_tokens, usage.input_tokens, usage.output_tokens)

    def tier_asked(self, payload: Mapping[str, Any]) -> str | None:
        return super().tier_asked(payload) or as_tier(payload.get("service_tier"))

    def names_tier(self, payload: Mapping[str, Any]) -> bool:
        return super().names_tier(payload) or "service_tier" in payload

    def tier_told(self, headers: Headers) -> str | None:
        return next((value.lower() for name, value in headers if name == "x-gemini-service-tier"), None)

    def limits(self, headers: Headers, now: float) -> list[RateLimit]:
        return []

    def fault(self, status: int, headers: Headers, body: bytes, now: float, *, tier: str | None = None) -> Fault:
        return self.error_fault(status, headers, error_object(body), now, tier=tier)

    def error_fault(
        self,
        status: int,
        headers: Headers,
        error: Mapping[str, Any],
        now: float | None,
        *,
        tier: str | None = None,
    ) -> Fault:
        """Read an error object, whether it came as an answer or as an event of a stream, where ``now`` is None.

        The flex tier is shed with the words of any overload; a limit of the account's own has a name beside them.
        """
        word = error.get("status")
        reason = f"{status} {word}" if isinstance(word, str) else str(status)
        if status == 429 and any("PerDay" in quota for quota in _quotas(error)):
            wait = None if now is None else _until_midnight(now)
            return Fault(
                Recovery.PAUSE, f"{reason}: a day's quota", retry_after=wait, elsewhere=True, of_model=True
            )
        delay = next((detail["retryDelay"] for detail in _details(error) if "retryDelay" in detail), None)
        demanded = demanded_wait(headers, {**error, "retryDelay": delay}, now or 0.0)
        shed = tier == _FLEX and (status == 503 or (status == 429 and not any(_quotas(error))))
        return status_fault(status, reason, wait=demanded, demanded=demanded, of_tier=shed)

    def usage(self, endpoint: Endpoint, body: bytes) -> Usage:
        if endpoint is Endpoint.OTHER:
            return Usage()
        try:
            answer = read_json(body)
        except ValueError:
            raise FormatError("the answer is not JSON") from None
        fields = _ANSWER_FIELDS[endpoint]
        if not isinstance(answer, dict) or not any(isinstance(answer.get(name), dict | list) for name in fields):
            told = str(error_object(body).get("message", ""))[:200]
            raise FormatError(f"the answer has no {fields[0]!r}" + (f" but says: {told}" if told else ""))
        return read_usage(answer)

    def stream(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> StreamReader:
        if endpoint is not Endpoint.STREAM_GENERATE_CONTENT:
            return PlainStreamReader()
        return ContentStreamReader(self._event_fault, candidates=_candidates(payload))

    def _event_fault(self, error: Mapping[str, Any]) -> Fault:
        """Read an error in a stream, which holds the status that it would have had."""
        status, word = error.get("code"), error.get("status")
        if type(status) is not int or not 400 <= status < 600:
            status = _STATUS_OF.get(word, 500) if isinstance(word, str) else 500
        return self.error_fault(status, (), error, None)


def _resource(model: str) -> str:
    return model if model.startswith(("models/", "tunedModels/")) else f"models/{model}"


def _inputs(payload: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what of a body counts as input, in all the requests that it may hold."""
    for name in _INPUTS:
        if name in payload:
            yield payload[name]
    config = _config(payload)
    yield from (config[name] for name in _SCHEMAS if name in config)
    requests = payload.get("requests")
    if isinstance(requests, list):
        yield from (request.get("content") for request in requests if isinstance(request, Mapping))


def _config(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    config = payload.get("generationConfig", payload.get("generation_config"))
    return config if isinstance(config, Mapping) else {}


def _candidates(payload: Mapping[str, Any]) -> int:
    """Return how many answers are asked for."""
    config = _config(payload)
    asked = config.get("candidateCount", config.get("candidate_count"))
    return asked if type(asked) is int else 1


def _details(error: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    details = error.get("details")
    return [one for one in details if isinstance(one, Mapping)] if isinstance(details, list) else []


def _quotas(error: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the quotas that an error calls used up."""
    for detail in _details(error):
        violations = detail.get("violations")
        for violation in violations if isinstance(violations, list) else []:
            if isinstance(violation, Mapping):
                yield str(violation.get("quotaId", ""))


@cache
def _pacific() -> tzinfo:
    try:
        return ZoneInfo("America/Los_Angeles")
    except ZoneInfoNotFoundError:  # no zone data here: in summer an hour late rather than early
        return timezone(timedelta(hours=-8))


def _until_midnight(now: float) -> float:
    """Return the seconds from unix time ``now`` until the next midnight in California."""
    day = datetime.fromtimestamp(now, _pacific()).date() + timedelta(days=1)
    return datetime(day.year, day.month, day.day, tzinfo=_pacific()).timestamp() - now
