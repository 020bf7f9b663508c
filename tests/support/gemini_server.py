"""A server that speaks Gemini's wire, as far as tests need it: answers in turn, plain and streamed."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

__all__ = ["Answer", "GeminiServer", "Request", "error", "quota_error"]

_TEXT = ("Hello", ", ", "world.")


@dataclass(frozen=True)
class Answer:
    """One answer, after ``delay`` seconds. ``body`` stands in for the endpoint's own, as it is (str) or as JSON.

    A stream has a response for each of ``texts``, the last with its end; ``drop_after=k`` closes the connection
    after k of them, ``error_after=k`` sends ``error`` as a JSON object in place of the rest.
    """

    status: int = 200
    body: Any = None
    texts: Sequence[str] = _TEXT
    gap: float = 0.0
    delay: float = 0.0
    drop_after: int | None = None
    error_after: int | None = None
    error: Mapping[str, Any] = field(default_factory=dict)
    finish: str | None = "STOP"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    at: float
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    json: Any


class GeminiServer:
    """Serves on a free port: ``async with GeminiServer([Answer(503, error(503, "UNAVAILABLE"))]) as server``."""

    def __init__(self, script: Iterable[Answer] = (), *, default: Answer | None = None) -> None:
        self.script = deque(script)
        self.default = default or Answer()
        self.log: list[Request] = []
        self.in_flight = 0
        self.origin = ""
        self._runner: web.ServerRunner | None = None

    async def __aenter__(self) -> Self:
        self._runner = web.ServerRunner(web.Server(self._handle, handler_cancellation=True), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.origin = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.in_flight += 1
        try:
            return await self._answer(request)
        except ConnectionResetError:
            return web.Response()
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = json.loads(await request.read() or b"{}")
        self.log.append(Request(time.monotonic(), request.path, dict(request.query), headers, body))
        answer = self.script.popleft() if self.script else self.default
        await asyncio.sleep(answer.delay)
        if answer.body is None and request.path.endswith(":streamGenerateContent"):
            return await self._stream(request, answer)
        told = _whole(request.path, body, answer) if answer.body is None else answer.body
        text = told if isinstance(told, str) else json.dumps(told)
        return web.Response(
            status=answer.status, text=text, content_type="application/json", headers=answer.headers
        )

    async def _stream(self, request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
        listed = request.query.get("alt") != "sse"
        response = web.StreamResponse(
            headers={"content-type": "application/json" if listed else "text/event-stream"}
        )
        await response.prepare(request)
        for sent, text in enumerate(answer.texts):
            if answer.drop_after == sent and request.transport is not None:
                request.transport.close()
                await asyncio.Event().wait()  # until the server cancels us
            if answer.error_after == sent:
                await response.write(json.dumps(dict(answer.error), indent=2).encode())
                break
            last = sent == len(answer.texts) - 1
            data = json.dumps(_response("".join(answer.texts[: sent + 1]), text, answer.finish if last else None))
            form = (
                (("[" if sent == 0 else ",\n") + data + ("]" if last else ""))
                if listed
                else f"data: {data}\r\n\r\n"
            )
            await response.write(form.encode())
            await asyncio.sleep(answer.gap)
        await response.write_eof()
        return response


def _whole(path: str, body: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    text = "".join(answer.texts)
    match path.rpartition(":")[2]:
        case "generateContent":
            return _response(text, text, answer.finish)
        case "embedContent":
            return {"embedding": {"values": [0.0, 1.0]}}
        case "batchEmbedContents":
            return {"embeddings": [{"values": [0.0, 1.0]} for _ in body["requests"]]}
        case "countTokens":
            return {"totalTokens": 7}
        case _:
            return {"models": [{"name": "models/scripted"}]}


def _response(so_far: str, text: str, finish: str | None) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
    usage = {"promptTokenCount": 11, "candidatesTokenCount": len(so_far) // 4, "thoughtsTokenCount": 2}
    return {
        "candidates": [candidate | ({"finishReason": finish} if finish else {})],
        "usageMetadata": {**usage, "totalTokenCount": 13 + len(so_far) // 4},
        "modelVersion": "scripted",
        "responseId": "r1",
    }


def error(code: int, status: str, message: str = "look here", *details: Mapping[str, Any]) -> dict[str, Any]:
    """Return an error's body in Google's form."""
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


def quota_error(quota: str, delay: str) -> dict[str, Any]:
    """Return the body of a 429 that names the quota, and a delay as ``RetryInfo`` has it."""
    failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": quota}]}
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
    return error(429, "RESOURCE_EXHAUSTED", "used up", failure, info)
