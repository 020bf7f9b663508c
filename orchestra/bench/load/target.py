"""What is asked under load."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from orchestra.bench.load.workload import Request
from orchestra.bench.results.measurement import Ended
from orchestra.chat_stream import ChatStream
from orchestra.errors import AdmissionError, AllRoutesFailed, ProviderError, StreamInterrupted

__all__ = ["Answer", "Target", "ended_by", "printable", "read_answer", "without_secrets"]

_BUSY = frozenset({429, 503, 529})
_REASONING = ("reasoning_content", "reasoning")


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer counted. ``told`` is False where the target tells no usage, and pieces were counted instead.

    ``route`` names who answered; ``usd`` is what it cost, None where nobody knows. ``hidden_tokens`` are those
    of a reasoning that was counted and not shown.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    told: bool
    route: str
    usd: float | None = None
    hidden_tokens: int = 0


class Target(Protocol):
    """Something that answers chats, piece by piece."""

    @property
    def name(self) -> str:
        """What a report calls it. It holds no secret."""
        ...

    async def ask(self, request: Request, came: Callable[[], None]) -> Answer:
        """Ask, and call ``came`` at each piece of output. Raises OrchestraError where there is no whole answer."""
        ...

    def tell(self, error: Exception) -> str:
        """Return what to say of an error that `ask` raised, without secrets, on one line."""
        ...


async def read_answer(stream: ChatStream, came: Callable[[], None]) -> Answer:
    """Read a streamed chat to its end. Raises StreamInterrupted where it breaks off."""
    pieces, reasons = 0, False
    async for chunk in stream.chunks:
        delta = chunk.choices[0].delta if chunk.choices else None
        extra = (delta.model_extra or {}) if delta is not None else {}
        is_reasoning = any(extra.get(key) for key in _REASONING)
        reasons |= is_reasoning
        if delta is not None and (delta.content or delta.tool_calls or is_reasoning):
            pieces += 1
            came()
    usage = stream.usage
    if usage is None:
        return Answer(0, pieces, 0, told=False, route=stream.route)
    details = usage.completion_tokens_details
    hidden = (details.reasoning_tokens or 0) if details is not None and not reasons else 0
    return Answer(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        told=True,
        route=stream.route,
        hidden_tokens=hidden,
    )


def ended_by(error: Exception) -> Ended:
    """Return whether a call was refused, for there was no room, or failed."""
    if isinstance(error, AllRoutesFailed) and error.attempts:
        return ended_by(error.attempts[-1][1])
    if isinstance(error, StreamInterrupted):
        return Ended.FAILED
    busy = isinstance(error, AdmissionError) or (isinstance(error, ProviderError) and error.status in _BUSY)
    return Ended.REFUSED if busy else Ended.FAILED


def without_secrets(text: Any, secrets: Iterable[str]) -> str:
    """Return the text on one line, shortened: servers quote what they do not like, keys among it."""
    told = " ".join(str(text).split())
    for secret in secrets:
        told = told.replace(secret, "***")
    told = printable(told)
    return told if len(told) <= 300 else told[:300] + "..."


def printable(text: str) -> str:
    """Return the text as files and terminals take it: half a surrogate has no UTF-8, controls steer a terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
