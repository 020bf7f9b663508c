"""A scripted provider for testing applications, and ourselves: ``pip install 'orchestra-llm[testing]'``."""

from __future__ import annotations

from orchestra.testing.limiter import Limits, Tenant
from orchestra.testing.provider import ScriptedProvider
from orchestra.testing.script import Hit, Reply, StreamScript

__all__ = ["Hit", "Limits", "Reply", "ScriptedProvider", "StreamScript", "Tenant"]
