"""One LLM account or GPU, shared by interactive and bulk work.

Everything public is here, and is loaded when it is first used: importing this package, or one of those inside it
(`orchestra.kernels`), loads nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from orchestra import errors
    from orchestra.chat_stream import ChatStream
    from orchestra.client import Orchestra
    from orchestra.config import Config, load_config
    from orchestra.errors import (
        AdmissionError,
        AdmissionTimeout,
        AllRoutesFailed,
        BudgetExceeded,
        CallError,
        CallTimeout,
        ConfigError,
        ConnectionFailed,
        DeadlineExceeded,
        InputError,
        JobError,
        JobLocked,
        LocalEngineError,
        OrchestraError,
        PriceUnknown,
        ProviderError,
        QueueFull,
        StreamInterrupted,
        UnknownModelError,
    )
    from orchestra.jobs import Job
    from orchestra.observe.events import Event
    from orchestra.openai_types import ChatCompletion, ChatCompletionChunk
    from orchestra.process_wide import anthropic_middleware, http_client, sync_http_client
    from orchestra.tagging import bulk, interactive

__all__ = [
    "AdmissionError",
    "AdmissionTimeout",
    "AllRoutesFailed",
    "BudgetExceeded",
    "CallError",
    "CallTimeout",
    "ChatCompletion",
    "ChatCompletionChunk",
    "ChatStream",
    "Config",
    "ConfigError",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Event",
    "InputError",
    "Job",
    "JobError",
    "JobLocked",
    "LocalEngineError",
    "Orchestra",
    "OrchestraError",
    "PriceUnknown",
    "ProviderError",
    "QueueFull",
    "StreamInterrupted",
    "UnknownModelError",
    "anthropic_middleware",
    "bulk",
    "errors",
    "http_client",
    "interactive",
    "load_config",
    "sync_http_client",
]

_HOMES = {
    "ChatCompletion": "openai_types",
    "ChatCompletionChunk": "openai_types",
    "ChatStream": "chat_stream",
    "Config": "config",
    "Event": "observe.events",
    "Job": "jobs",
    "Orchestra": "client",
    "anthropic_middleware": "process_wide",
    "bulk": "tagging",
    "http_client": "process_wide",
    "interactive": "tagging",
    "load_config": "config",
    "sync_http_client": "process_wide",
}
"""Where each name lives. What is not told here lives in `errors`."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        globals()[name] = installed = import_module("importlib.metadata").version("orchestra-llm")
        return installed
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
    value = globals()[name] = home if name == "errors" else getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
