"""A scripted provider for testing applications, and ourselves: ``pip install 'orchestra-llm[testing]'``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestra.testing.limiter import Limits, Tenant
from orchestra.testing.script import Hit, Reply, StreamScript

if TYPE_CHECKING:
    from orchestra.testing.provider import ScriptedProvider

__all__ = ["Hit", "Limits", "Reply", "ScriptedProvider", "StreamScript", "Tenant"]


def __getattr__(name: str) -> Any:
    """Load the server when it is first used: it alone needs aiohttp, and says so where that is not installed."""
    if name != "ScriptedProvider":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from orchestra.testing.provider import ScriptedProvider
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        message = "orchestra.testing needs aiohttp: pip install 'orchestra-llm[testing]'"
        raise ModuleNotFoundError(message, name="aiohttp") from None
    globals()[name] = ScriptedProvider
    return ScriptedProvider
