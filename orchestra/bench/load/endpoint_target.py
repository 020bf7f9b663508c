"""An OpenAI-compatible server, asked without anything between: no budget, no retry."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from orchestra.bench.load.prompts import messages_of
from orchestra.bench.load.target import Answer, read_answer, without_secrets
from orchestra.bench.load.workload import Request
from orchestra.call import Headers, Outcome
from orchestra.chat_stream import ChatStream
from orchestra.errors import InputError
from orchestra.own_calls import chat_payload, provider_error
from orchestra.wire import HttpWire

__all__ = ["EndpointTarget"]

_CONNECT_TIMEOUT, _READ_TIMEOUT = 10.0, 600.0


class EndpointTarget:
    """The chat endpoint below a base URL, as an official SDK would take it (``http://localhost:8000/v1``).

    ``body`` are further fields of each request; ``length_field`` is the one that bounds the answer. Raises
    InputError where the URL is none, or holds what may not be shown.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        body: Mapping[str, Any] | None = None,
        length_field: str = "max_tokens",
        wire: HttpWire | None = None,
    ) -> None:
        self._url = _checked(base_url).rstrip("/") + "/chat/completions"
        self._model = model
        self._secrets = [api_key] if api_key else []
        self._body = dict(body or {})
        self._length_field = length_field
        self._wire = wire or HttpWire()
        authorization = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._headers: Headers = (
            ("content-type", "application/json"),
            ("accept", "text/event-stream"),
            *authorization,
        )

    @property
    def name(self) -> str:
        return f"{self._model} at {self._url.removesuffix('/chat/completions')}"

    async def ask(self, request: Request, came: Callable[[], None]) -> Answer:
        fields = {
            self._length_field: request.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._body,
        }
        payload = chat_payload(self._model, messages_of(request), fields)
        response = await self._wire.send(
            "POST",
            self._url,
            self._headers,
            json.dumps(payload).encode(),
            connect_timeout=_CONNECT_TIMEOUT,
            read_timeout=_READ_TIMEOUT,
        )
        host = urlsplit(self._url).netloc
        outcome = Outcome(response.status, response.headers, response.body, host, close=response.aclose)
        try:
            if outcome.status >= 400:
                raise provider_error(outcome, await outcome.read())
            return await read_answer(ChatStream(outcome), came)
        finally:
            await outcome.aclose()

    def tell(self, error: Exception) -> str:
        return without_secrets(error, self._secrets)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._wire.aclose()


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or any(sign.isspace() for sign in url):
        raise InputError("--url must be the http(s) address that an SDK would take, like http://localhost:8000/v1")
    if parts.username is not None or parts.query or parts.fragment:
        raise InputError("--url may hold no user, query or fragment: name the key's variable with --api-key-env")
    return url
