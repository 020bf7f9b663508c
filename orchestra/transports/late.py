"""A call whose time was up, told as its caller's library tells it: by that library's own timeout error, once.

What httpx raises on a timeout, the SDKs that Stainless generates (openai, anthropic, groq, together) take for a
reason to pause and try again, though the caller's bound is over. An answer with ``x-should-retry: false`` they do
not try again. So they are given one, which raises their own timeout error when they ask what it says: by
``raise_for_status``, or, as anthropic does, by ``text``. An SDK that asks otherwise gets an answer of status 504.
To everybody else the HTTP library's own timeout is raised.

Source: ``_base_client.py`` of openai 2.54 and 3.57, anthropic 2.14, groq 1.7, together 3.1.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from orchestra.call import Headers
from orchestra.errors import OrchestraError

__all__ = ["LateAnswer", "TimeIsUp"]

_SDKS = ("openai", "anthropic", "groq", "together")


class TimeIsUp(Exception):
    """``error`` ended a call whose request had the header lines ``asked`` (lower-case).

    ``status``, ``headers`` and ``body`` are the answer to one who has to be answered.
    """

    def __init__(self, error: OrchestraError, asked: Headers, status: int, headers: Headers, body: bytes) -> None:
        super().__init__(str(error))
        self.error = error
        self.status = status
        self.headers = headers
        self.body = body
        self._asked = dict(asked)

    @property
    def is_retried(self) -> bool:
        """Whether an SDK asked that tries again whatever a transport raises."""
        return "x-stainless-lang" in self._asked

    def sdk_error(self, request: Any) -> Exception | None:
        """Return the timeout error of the SDK that made ``request``; None where it is none that we know."""
        sdk = self._sdk()
        if sdk is None:
            return None
        error: Exception = sdk.APITimeoutError(request=request)
        told = f"Request timed out: {self.error}"  # litellm knows a timeout by the first words
        error.args = (told,)
        vars(error)["message"] = told
        error.__cause__ = self.error
        return error

    def _sdk(self) -> ModuleType | None:
        version, agent = self._asked.get("x-stainless-package-version"), self._asked.get("user-agent", "").lower()
        loaded = [module for name in _SDKS if (module := sys.modules.get(name)) is not None]
        found = [module for module in loaded if getattr(module, "__version__", None) == version]
        return max(found, key=lambda module: module.__name__ in agent, default=None)  # others may name themselves


class LateAnswer:
    """What makes a response of an HTTP library raise ``late``, where it has one, when it is asked what it says."""

    late: Exception | None = None

    def raise_for_status(self) -> Any:
        if self.late is not None:
            raise self.late
        return super().raise_for_status()  # type: ignore[misc]

    @property
    def text(self) -> str:
        if self.late is not None:
            raise self.late
        return str(super().text)  # type: ignore[misc]
