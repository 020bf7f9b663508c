"""A provider that answers in this process, by a script."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from run_lab import Hurry

from orchestra.call import Call, Outcome, Usage
from orchestra.cli.main import main
from orchestra.jobs import JobManager
from orchestra.testing import ScriptedProvider

Answer = Callable[[str, int], Awaitable[Outcome] | Outcome | Exception | None]
"""What to answer to a prompt at its n-th asking (from 1). None: the usual."""


def answer(status: int = 200, body: object = None, headers: tuple[tuple[str, str], ...] = ()) -> Outcome:
    """Return an outcome. ``body`` is JSON to be, or bytes."""
    if body is None:
        body = {"id": "chatcmpl-1", "choices": [{"message": {"role": "assistant", "content": "well"}}]}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def chunks() -> AsyncIterator[bytes]:
        yield raw[:5]
        yield raw[5:]

    return Outcome(status, (("x-request-id", "req-1"), *headers), chunks(), "fake/model", Usage(7, 3, 0, "known"))


class FakeProvider:
    """Answers calls, and remembers them. ``script`` may be replaced at any time."""

    def __init__(self) -> None:
        self.script: Answer = lambda prompt, asked: None
        self.calls: list[Call] = []
        self.asked: Counter[str] = Counter()
        self.under_way = 0
        self.peak = 0
        self.delay = 0.0

    async def send(self, call: Call) -> Outcome:
        assert call.payload is not None
        prompt = call.payload["messages"][-1]["content"]
        self.calls.append(call)
        self.asked[prompt] += 1
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        try:
            await asyncio.sleep(self.delay)
            said = self.script(prompt, self.asked[prompt])
            if isinstance(said, Exception):
                raise said
            if said is None:
                return answer()
            return said if isinstance(said, Outcome) else await said
        finally:
            self.under_way -= 1


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider()


@pytest.fixture
def outcome() -> Callable[..., Outcome]:
    return answer


@pytest.fixture
async def manager(provider: FakeProvider, tmp_path: Path) -> AsyncIterator[JobManager]:
    manager = JobManager(tmp_path / "jobs.db", provider.send, window=8, patience=0.2)
    yield manager
    await manager.aclose()


@pytest.fixture
def request_of() -> Callable[..., dict[str, Any]]:
    def request(prompt: object, **rest: object) -> dict[str, Any]:
        return {"model": "fast", "messages": [{"role": "user", "content": str(prompt)}], **rest}

    return request


@pytest.fixture
def batch_file(tmp_path: Path, request_of: Callable[..., dict[str, Any]]) -> Callable[..., Path]:
    """Write a file of batch lines for these prompts, whose custom_ids are ``id-<prompt>``."""

    def write(*prompts: object, name: str = "in.jsonl") -> Path:
        path = tmp_path / name
        lines = (
            {
                "custom_id": f"id-{prompt}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": request_of(prompt),
            }
            for prompt in prompts
        )
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return write


@pytest.fixture
def hurry() -> Hurry:
    """The clock that the provider's batches go by."""
    return Hurry()


@pytest.fixture
def server(hurry: Hurry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedProvider]:
    """A provider that serves the model ``fast`` of the orchestra.toml in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCHESTRA_DEBUG", "")
    with ScriptedProvider(clock=hurry) as server:
        Path("orchestra.toml").write_text(
            f'[providers.fake]\nkind = "openai-compatible"\nbase_url = "{server.base_url}"\n'
            'api_key = "sk-hidden"\nlimits = [{max_concurrency = 8}]\n'
            '[models.fast]\nroutes = ["fake/m"]\n'
        )
        yield server


@pytest.fixture
def orchestra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run the command line here. Returns exit code, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["orchestra", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return call
