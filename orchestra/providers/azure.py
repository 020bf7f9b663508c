"""Azure OpenAI.

Sources: learn.microsoft.com, "Azure OpenAI quotas and limits" and "Manage Azure OpenAI quota" (what is counted on
arrival, the window of a minute), openai 3.57.0 ``lib/azure.py`` (paths by deployment, the ``api-key`` header).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from orchestra.call import Charge, Headers, Usage
from orchestra.policies.fault import Fault
from orchestra.providers.base import Endpoint, in_path
from orchestra.providers.openai import OpenAICompatible, used_by

__all__ = ["Azure"]

_DEPLOYMENT = re.compile(r"(/openai/deployments/)([^/]+)(/.+)")


class Azure(OpenAICompatible):
    """A resource of Azure OpenAI, whose models are its deployments.

    On arrival it counts an estimate of the prompt and the output bound, times the answers asked for, and corrects
    nothing by what was used. A minute's tokens are given anew when the minute is over.
    """

    root = "/openai/v1"
    window = "fixed"

    def endpoint(self, path: str) -> Endpoint:
        by_deployment = _DEPLOYMENT.fullmatch(path)
        return super().endpoint(by_deployment[3] if by_deployment else path)

    def model_in(self, path: str) -> str | None:
        by_deployment = _DEPLOYMENT.fullmatch(path)
        return unquote(by_deployment[2]) if by_deployment else None

    def path_for(self, path: str, model: str) -> str:
        return _DEPLOYMENT.sub(lambda match: f"{match[1]}{in_path(model)}{match[3]}", path)

    def credentials(self, key: str) -> Headers:
        return (("api-key", key),)

    def settle(self, charge: Charge, usage: Usage) -> Charge:
        return replace(used_by(charge, usage), tokens=charge.tokens)

    def error_fault(self, status: int, headers: Headers, error: Mapping[str, Any], now: float) -> Fault:
        fault = super().error_fault(status, headers, error, now)
        if status == 429 and "high demand" in str(error.get("message", "")).lower():
            return replace(fault, throttled=False, pause=None, elsewhere=True)  # its own want of room, not ours
        return fault
