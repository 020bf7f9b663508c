"""Every exception that the engine raises.

::

    EngineError
    ├── ModelFileError      a weights, tokenizer or template file cannot be used; names the file and the remedy
    ├── PromptError         a prompt that can never be served, raised at submit
    │   ├── PromptTooLong   prompt plus max_tokens exceed the context, or the KV cache
    │   └── ParameterError  another part of the request that this model cannot serve; ``field`` names it
    │       └── GrammarError    the form that the output should have cannot be compiled
    ├── EngineBusy          the bounded waiting queue is full
    ├── EngineClosed        submitted after close, or closed while waiting
    │   └── EngineForked    used in a process that was forked from the engine's
    └── EngineDied          the step loop failed; the engine can be started again
"""

from __future__ import annotations

__all__ = [
    "EngineBusy",
    "EngineClosed",
    "EngineDied",
    "EngineError",
    "EngineForked",
    "GrammarError",
    "ModelFileError",
    "ParameterError",
    "PromptError",
    "PromptTooLong",
]


class EngineError(Exception):
    """Base of every exception that the engine raises."""


class ModelFileError(EngineError):
    """A model file is missing, truncated, or of a kind that the engine does not run."""


class PromptError(EngineError):
    """The prompt cannot be served, however long one waits."""


class PromptTooLong(PromptError):
    """Prompt plus ``max_tokens`` exceed the model's context or the whole KV cache."""


class ParameterError(PromptError):
    """A sampling parameter, or a part of a chat beside its messages, that this model cannot serve."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class GrammarError(ParameterError):
    """The schema, regular expression or grammar of the output is wrong, or uses what is not supported."""

    def __init__(self, message: str) -> None:
        super().__init__(message, field="structure")


class EngineBusy(EngineError):
    """The bounded waiting queue of the request's class is full."""


class EngineClosed(EngineError):
    """The engine was closed before or while the request was served."""


class EngineForked(EngineClosed):
    """The engine was used in a process that was forked from one in which an engine had run."""


class EngineDied(EngineError):
    """The step loop failed. Every waiter gets this; the engine can be started again."""
