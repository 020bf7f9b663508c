"""Readers of OpenAI's streams. Once content flows, an event that tells us nothing is passed on unparsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from orchestra.call import Usage
from orchestra.policies.fault import Fault
from orchestra.providers.base import as_tier
from orchestra.providers.event_reader import EventReader, PlainStreamReader
from orchestra.providers.faults import as_error
from orchestra.providers.sse import event_data

__all__ = ["ChatStreamReader", "PlainStreamReader", "ResponsesStreamReader", "as_error", "read_usage"]

FaultOf = Callable[[Mapping[str, Any]], Fault]
UsageOf = Callable[[Mapping[str, Any]], Usage]

_LARGEST_COUNT = 10**12
_FINISH_REASON = re.compile(rb'"finish_reason"\s*:\s*"')
"""Quotes in text are escaped: this is never part of what a model wrote."""


def read_usage(answer: Mapping[str, Any]) -> Usage:
    """Return the usage that an answer or a chunk reports, and its service tier, under any of the names in use."""
    tier = as_tier(answer.get("service_tier"))
    groq = answer.get("x_groq")
    usage = answer.get("usage") or (groq.get("usage") if isinstance(groq, Mapping) else None)
    if not isinstance(usage, Mapping):
        return Usage(tier=tier)
    tier = as_tier(usage.get("service_tier")) or tier
    prompt = _first(usage, "prompt_tokens", "input_tokens")
    output = _first(usage, "completion_tokens", "output_tokens")
    if prompt is None and output is None:
        return Usage(tier=tier)
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = _first(details, "cached_tokens") if isinstance(details, Mapping) else 0
    return Usage(prompt or 0, output or 0, cached or 0, certainty="known", tier=tier)


def _first(counts: Mapping[str, Any], *names: str) -> int | None:
    values = (counts.get(name) for name in names)
    return next((value for value in values if type(value) is int and 0 <= value <= _LARGEST_COUNT), None)


class _EventReader(EventReader):
    """A reader that is told how its dialect words errors and usage."""

    def __init__(self, *, fault_of: FaultOf, usage_of: UsageOf) -> None:
        super().__init__()
        self._fault_of = fault_of
        self._usage_of = usage_of


class ChatStreamReader(_EventReader):
    """Chat completions and completions: chunks, then ``[DONE]``.

    The chunk that carries the usage has no choices; the caller sees it only if it asked for it (``keep_usage``).
    Some servers (``transformers serve``, for one) send no ``[DONE]``: a body that ends of itself is whole, too,
    once as many choices as were asked for have said why they finished.
    """

    def __init__(self, *, fault_of: FaultOf, usage_of: UsageOf, keep_usage: bool, choices: int = 1) -> None:
        super().__init__(fault_of=fault_of, usage_of=usage_of)
        self._keep_usage = keep_usage
        self._unfinished = choices

    def finish(self) -> bytes:
        rest = super().finish()
        self.ended = self.ended or (self._unfinished <= 0 and self.fault is None)
        return rest

    def _keep(self, event: bytes) -> bool:
        data = event_data(event)
        if data is None:
            return True
        if data.strip() == b"[DONE]":
            self.ended = True
            return True
        self._unfinished -= len(_FINISH_REASON.findall(data))
        if self.started and not _tells(data):
            return True
        chunk = self._parse(data)
        error = _read_error(chunk)
        if error:
            self.fault = self._fault_of(error)
            return True
        usage = self._usage_of(chunk)
        tier = usage.tier or self.usage.tier
        self.usage = replace(usage if usage.certainty == "known" else self.usage, tier=tier)
        choices = chunk.get("choices")
        self.started = self.started or _shows_content(choices)
        return self._keep_usage or bool(choices) or not chunk.get("usage")


def _tells(data: bytes) -> bool:
    """Return whether a chunk may say more than text. Quotes in text are escaped: these bytes are names."""
    if b'"error"' in data or b'"timings"' in data:
        return True
    return b'"usage"' in data and b'"usage":null' not in data


def _read_error(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the error that a chunk reports, empty where it reports none. Groq has its own place for it."""
    groq = chunk.get("x_groq")
    return as_error(chunk.get("error")) or (as_error(groq.get("error")) if isinstance(groq, Mapping) else {})


def _shows_content(choices: Any) -> bool:
    return isinstance(choices, list) and any(_has_content(choice) for choice in choices)


def _has_content(choice: Any) -> bool:
    if not isinstance(choice, Mapping):
        return False
    if choice.get("text") or choice.get("finish_reason"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, Mapping) and any(value for name, value in delta.items() if name != "role")


class ResponsesStreamReader(_EventReader):
    """Responses: typed events, the last of which carries the whole response with its usage. No ``[DONE]``."""

    _PREAMBLE = frozenset(
        {
            "response.created",
            "response.queued",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        }
    )
    _LAST = frozenset({"response.completed", "response.failed", "response.incomplete"})
    _MARKS = (b"response.completed", b"response.failed", b"response.incomplete", b'"error"')

    def _keep(self, event: bytes) -> bool:
        data = event_data(event)
        if data is None or (self.started and not any(mark in data for mark in self._MARKS)):
            return True
        parsed = self._parse(data)
        kind = parsed.get("type")
        if kind == "error":
            self.fault = self._fault_of(as_error(parsed.get("error")) or {**parsed, "type": None})
            return True
        response = parsed.get("response")
        if kind in self._LAST and isinstance(response, Mapping):
            self.ended = True
            self.usage = self._usage_of(response)
            if kind == "response.failed" and not self.started:
                self.fault = self._fault_of(as_error(response.get("error")))
        self.started = self.started or kind not in self._PREAMBLE
        return True
