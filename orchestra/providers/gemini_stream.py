"""The reader of Gemini's streams, and of its usage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from orchestra.call import Usage
from orchestra.policies.fault import Fault
from orchestra.providers.base import FormatError
from orchestra.providers.event_reader import EventReader
from orchestra.providers.faults import as_error
from orchestra.providers.sse import ObjectSplitter, event_data

__all__ = ["ContentStreamReader", "read_usage"]

_LARGEST_COUNT = 10**12
_KNOWN = frozenset({"candidates", "promptFeedback", "usageMetadata", "modelVersion", "responseId"})


def read_usage(answer: Mapping[str, Any]) -> Usage:
    """Return what an answer's ``usageMetadata`` reports. Thoughts stand beside the candidates; tools' results are
    input beside the prompt, in which the cached part is contained."""
    usage = answer.get("usageMetadata")
    if not isinstance(usage, Mapping):
        return Usage()
    names = ("promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
    prompt, tools, candidates, thoughts = (_count(usage.get(name)) for name in names)
    if prompt is None and candidates is None:
        return Usage()
    cached = _count(usage.get("cachedContentTokenCount")) or 0
    return Usage((prompt or 0) + (tools or 0), (candidates or 0) + (thoughts or 0), cached, certainty="known")


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _LARGEST_COUNT else None


class ContentStreamReader(EventReader):
    """streamGenerateContent: whole responses as events or, without ``alt=sse``, as a JSON list.

    There is no last line: a stream is complete when each of the ``candidates`` asked for has a ``finishReason``,
    or all that came by the end of the body; or when the prompt was refused. The usage of each response is that of
    all so far. An error comes as a JSON object, even between events.
    """

    def __init__(self, fault_of: Callable[[Mapping[str, Any]], Fault], *, candidates: int = 1) -> None:
        super().__init__()
        self._fault_of = fault_of
        self._asked = candidates
        self._seen: set[str] = set()
        self._finished: set[str] = set()

    def finish(self) -> bytes:
        rest = super().finish()
        if self._finished and self._finished == self._seen:
            self._end()
        return rest

    def _knows(self, head: bytes) -> bool:
        if head.lstrip().startswith((b"[", b"{")):
            self._splitter = ObjectSplitter()
            return True
        return super()._knows(head)

    def _keep(self, event: bytes) -> bool:
        data = event_data(event)
        if data is None:
            data = event.strip(b"[], \t\r\n")
            if not data.startswith(b"{"):
                return True
        answer = self._parse(data)
        error = as_error(answer.get("error"))
        if error:
            self.fault = self._fault_of(error)
            return True
        if not _KNOWN.intersection(answer):
            raise FormatError("an event is no response of generateContent")
        self._note(answer)
        return True

    def _note(self, answer: Mapping[str, Any]) -> None:
        usage = read_usage(answer)
        if usage.certainty == "known":
            self.usage = replace(usage, certainty="estimated")  # until the end
        candidates = answer.get("candidates")
        for candidate in candidates if isinstance(candidates, list) else []:
            if isinstance(candidate, Mapping):
                index = str(candidate.get("index", 0))
                self._seen.add(index)
                if candidate.get("finishReason"):
                    self._finished.add(index)
                self.started = self.started or bool(self._finished) or _has_content(candidate)
        if len(self._finished) >= self._asked or _is_refused(answer):
            self._end()

    def _end(self) -> None:
        self.started = self.ended = True
        if self.usage.certainty == "estimated":
            self.usage = replace(self.usage, certainty="known")


def _is_refused(answer: Mapping[str, Any]) -> bool:
    feedback = answer.get("promptFeedback")
    return isinstance(feedback, Mapping) and bool(feedback.get("blockReason"))


def _has_content(candidate: Mapping[str, Any]) -> bool:
    content = candidate.get("content")
    parts = content.get("parts") if isinstance(content, Mapping) else None
    return isinstance(parts, list) and any(
        isinstance(part, Mapping) and any(value for name, value in part.items() if name != "thought")
        for part in parts
    )
