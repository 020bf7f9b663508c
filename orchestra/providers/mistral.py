"""Mistral.

Sources: its documentation, "Rate limits"; mistralai 3.7.0. Tokens are counted input and output together, and a
stream tells its usage in its last chunk unasked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestra.providers.base import Endpoint
from orchestra.providers.openai import OpenAICompatible

__all__ = ["Mistral"]


class Mistral(OpenAICompatible):
    """Mistral. ``stream_options`` were refused by older versions of its API: they are left out."""

    root = "/v1"
    asks_for_usage = False

    def prepare(self, endpoint: Endpoint, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        if "stream_options" not in payload:
            return payload
        return {name: value for name, value in payload.items() if name != "stream_options"}
