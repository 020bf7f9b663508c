"""Batches of a scripted provider, over real sockets and on a clock that is set by hand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from orchestra.testing import ScriptedProvider

CHAT = "/v1/chat/completions"


class Clock:
    """Seconds that pass when told so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def last_message(payload: Mapping[str, Any]) -> str:
    """Return what a request's last message says: an answer that echoes it is known to be its own."""
    return str(payload["messages"][-1]["content"]) if payload.get("messages") else "nothing"


def params(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": text}], **fields}


def line(custom_id: str, text: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return one line of an OpenAI batch; ``fields`` are those of the line, not of its body."""
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": CHAT,
        "body": params(text or f"to {custom_id}"),
        **fields,
    }


def jsonl(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in lines).encode()


@dataclass
class BatchLab:
    """``http`` is pointed at the provider's origin, with the key ``a``."""

    provider: ScriptedProvider
    clock: Clock
    http: httpx2.AsyncClient

    async def get(self, path: str, *, key: str = "a", **query: Any) -> httpx2.Response:
        return await self.http.get(path, params=query, headers={"authorization": f"Bearer {key}"})

    async def upload(self, content: bytes, *, key: str = "a", purpose: str = "batch") -> dict[str, Any]:
        answer = await self.http.post(
            "/v1/files",
            data={"purpose": purpose},
            files={"file": ("lines.jsonl", content)},
            headers={"authorization": f"Bearer {key}"},
        )
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def create(self, file_id: str, *, key: str = "a", **fields: Any) -> httpx2.Response:
        body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h", **fields}
        return await self.http.post("/v1/batches", json=body, headers={"authorization": f"Bearer {key}"})

    async def submit(self, lines: Iterable[Mapping[str, Any]] | bytes, **fields: Any) -> dict[str, Any]:
        """Upload and create. Returns the batch as its creation was answered."""
        content = lines if isinstance(lines, bytes) else jsonl(lines)
        file = await self.upload(content, key=fields.get("key", "a"))
        answer = await self.create(file["id"], **fields)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def poll(self, batch_id: str, after: float = 0.0) -> dict[str, Any]:
        """Return the batch as it stands so many seconds later."""
        self.clock.now += after
        answer = await self.get(f"/v1/batches/{batch_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def results(self, file_id: str) -> list[dict[str, Any]]:
        answer = await self.get(f"/v1/files/{file_id}/content")
        assert answer.status_code == 200, answer.text
        return [json.loads(one) for one in answer.text.splitlines()]

    async def create_messages(self, requests: Iterable[Mapping[str, Any]], **headers: str) -> httpx2.Response:
        """Create a batch in Anthropic's form."""
        told = {"x-api-key": "a", "anthropic-version": "2023-06-01", **headers}
        return await self.http.post("/v1/messages/batches", json={"requests": list(requests)}, headers=told)


@asynccontextmanager
async def batch_lab(**options: Any) -> AsyncIterator[BatchLab]:
    """Serve batches whose answers echo their questions."""
    clock = Clock()
    provider = ScriptedProvider(**{"text": last_message, "clock": clock, **options})
    async with provider, httpx2.AsyncClient(base_url=provider.origin, trust_env=False) as http:
        yield BatchLab(provider, clock, http)
