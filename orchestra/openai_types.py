"""OpenAI's chat and completions wire, as far as a caller reads it.

The fields are those of OpenAI's published API description. Providers that speak the same wire add fields of their
own and leave others out, or empty. Nothing is lost: unknown fields stay readable as attributes and come out of
``model_dump()`` again. Only what makes an answer one, its choices, must be there.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChatMessage",
    "Choice",
    "ChunkChoice",
    "ChunkDelta",
    "Completion",
    "CompletionChoice",
    "CompletionUsage",
    "FunctionCall",
    "FunctionCallDelta",
    "ToolCall",
    "ToolCallDelta",
]


class _Wire(BaseModel):
    # a provider's "model_..." field is a field like any other; and what is never validated is never built
    model_config = ConfigDict(extra="allow", protected_namespaces=(), defer_build=True)


class PromptTokensDetails(_Wire):
    cached_tokens: int | None = None


class CompletionTokensDetails(_Wire):
    reasoning_tokens: int | None = None


class CompletionUsage(_Wire):
    """Tokens used. ``prompt_tokens`` include cached ones, ``completion_tokens`` include reasoning."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the provider had cached; 0 where it does not say."""
        details = self.prompt_tokens_details
        return (details.cached_tokens or 0) if details is not None else 0


class FunctionCall(_Wire):
    """``arguments`` is JSON text as the model wrote it: it may be invalid."""

    name: str
    arguments: str


class ToolCall(_Wire):
    id: str
    type: str = "function"
    function: FunctionCall | None = None


class ChatMessage(_Wire):
    """What the model said. ``content`` is None where it called tools or refused instead."""

    role: str = "assistant"
    content: str | list[Any] | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(_Wire):
    index: int = 0
    message: ChatMessage
    finish_reason: str | None = None
    logprobs: Any = None


class ChatCompletion(_Wire):
    """The answer to a chat request."""

    id: str = ""
    object: str = "chat.completion"
    created: int = 0
    model: str = ""
    choices: list[Choice]
    usage: CompletionUsage | None = None

    @property
    def text(self) -> str:
        """The first choice's text; empty where it has none."""
        content = self.choices[0].message.content if self.choices else None
        return content if isinstance(content, str) else _joined_text(content)


class FunctionCallDelta(_Wire):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(_Wire):
    """A piece of a tool call. Pieces with the same ``index`` belong together."""

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionCallDelta | None = None


class ChunkDelta(_Wire):
    role: str | None = None
    content: str | list[Any] | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(_Wire):
    index: int = 0
    delta: ChunkDelta = Field(default_factory=ChunkDelta)
    finish_reason: str | None = None
    logprobs: Any = None


class ChatCompletionChunk(_Wire):
    """A piece of a streamed answer. The chunk that brings ``usage`` has no choices."""

    id: str = ""
    object: str = "chat.completion.chunk"
    created: int = 0
    model: str = ""
    choices: list[ChunkChoice]
    usage: CompletionUsage | None = None

    @property
    def text(self) -> str:
        """The first choice's piece of text; empty where the chunk brings none."""
        choice = next((choice for choice in self.choices if choice.index == 0), None)
        content = choice.delta.content if choice is not None else None
        return content if isinstance(content, str) else _joined_text(content)


class CompletionChoice(_Wire):
    index: int = 0
    text: str
    finish_reason: str | None = None
    logprobs: Any = None


class Completion(_Wire):
    """The answer to a ``/completions`` request, and each chunk of a streamed one."""

    id: str = ""
    object: str = "text_completion"
    created: int = 0
    model: str = ""
    choices: list[CompletionChoice]
    usage: CompletionUsage | None = None


def _joined_text(parts: list[Any] | None) -> str:
    """Join the text of content parts (some providers answer with a list of them)."""
    texts = (part.get("text") for part in parts or () if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))
