"""The forms of batch endpoints: what they ask, against the official SDKs' types and OpenAI's description."""

from __future__ import annotations

import email.policy
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from email.parser import BytesParser
from typing import Any

import pytest
from mistralai.client.models import BatchRequestTypedDict
from mistralai.client.models.createbatchjobrequest import CreateBatchJobRequest
from openai.types import FilePurpose, batch_create_params
from openapi import faults, needs_description
from pydantic import TypeAdapter

from orchestra.errors import InputError
from orchestra.providers.batches import Ask, BatchForm, BatchLine, BatchOrder, form_of_kind

KEY = "01JSAMPLE"
CHAT = BatchOrder(KEY, "/v1/chat/completions", "gpt-x")
FILED = ("openai", "azure", "groq", "mistral", "together", "vllm", "openai-compatible")
BODY: dict[str, Any] = {"model": "gpt-x", "messages": [{"role": "user", "content": 'say "ä\n"'}], "max_tokens": 8}


def form(kind: str) -> BatchForm:
    found = form_of_kind(kind)
    assert found is not None
    return found


def compact(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


async def once(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def sent(ask: Ask) -> bytes:
    """Return the body of a request, which is as long as its header says."""
    if isinstance(ask.body, bytes):
        return ask.body
    body = b"".join([piece async for piece in ask.body])
    assert dict(ask.headers)["content-length"] == str(len(body))
    return body


async def created(kind: str, order: BatchOrder) -> Any:
    return json.loads(await sent(form(kind).create(order, "file-1")))


async def inline(
    kind: str, order: BatchOrder, lines: list[bytes], cut: Callable[[list[bytes]], list[bytes]]
) -> Any:
    ask = form(kind).create(order, once(*cut(lines)), sum(len(line) for line in lines))
    return json.loads(await sent(ask))


# lines


@pytest.mark.parametrize("kind", ["openai", "azure", "groq", "vllm", "openai-compatible"])
def test_a_line_as_openai_takes_it(kind: str) -> None:
    written = form(kind).line(CHAT, BatchLine("a", compact(BODY)))
    assert written.endswith(b"\n")
    assert json.loads(written) == {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": BODY}


@pytest.mark.parametrize("kind", ["mistral", "together"])
def test_a_line_of_a_body_alone(kind: str) -> None:
    written = json.loads(form(kind).line(CHAT, BatchLine("a", compact(BODY))))
    assert written == {"custom_id": "a", "body": BODY}
    TypeAdapter(BatchRequestTypedDict).validate_python(written)


@pytest.mark.parametrize(
    ("kind", "path", "endpoint"),
    [
        ("openai", "/chat/completions", "/v1/chat/completions"),
        ("openai", "/responses", "/v1/responses"),
        ("openai", "/v1/embeddings", "/v1/embeddings"),
        ("groq", "/openai/v1/chat/completions", "/v1/chat/completions"),
        ("azure", "/openai/v1/chat/completions", "/v1/chat/completions"),
        ("azure", "/openai/deployments/d/chat/completions", "/chat/completions"),
        ("mistral", "/v1/chat/completions", "/v1/chat/completions"),
        ("together", "/v1/chat/completions", "/v1/chat/completions"),
    ],
)
async def test_endpoints_are_named_as_the_provider_does(kind: str, path: str, endpoint: str) -> None:
    order = replace(CHAT, path=path)
    assert (await created(kind, order))["endpoint"] == endpoint
    line = json.loads(form(kind).line(order, BatchLine("a", b"{}")))
    assert line.get("url", endpoint) == endpoint


# uploads


@pytest.mark.parametrize("kind", FILED)
async def test_a_file_is_uploaded_as_a_form(kind: str) -> None:
    content = form(kind).line(CHAT, BatchLine("a", compact(BODY))) * 3
    ask = form(kind).upload(CHAT, once(content[:10], content[10:]), len(content))
    body = await sent(ask)
    head = f"content-type: {dict(ask.headers)['content-type']}\r\n\r\n".encode()
    told = BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    parts = {
        part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
        for part in told.iter_parts()
    }
    assert parts.pop("file") == content
    files = [part.get_filename() for part in told.iter_parts() if part.get_filename()]
    assert files == [f"{KEY}.jsonl"]
    if kind == "together":
        assert ask.path == "/v1/files/upload"
        assert parts == {"purpose": b"batch-api", "file_name": f"{KEY}.jsonl".encode(), "file_type": b"jsonl"}
    else:
        assert ask.path == f"{form(kind).dialect.root}/files"
        assert parts == {"purpose": b"batch"}
        TypeAdapter(FilePurpose).validate_python(parts["purpose"].decode())


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
async def test_a_size_that_is_wrong_is_found_out(kind: str, change: int) -> None:
    found = form(kind)
    line = found.line(CHAT, BatchLine("a", b"{}"))
    make = found.upload if found.takes_files else found.create
    ask = make(CHAT, once(line), len(line) + change)
    with pytest.raises(InputError, match="size"):
        await sent(ask)


# creations


async def test_a_batch_of_openais() -> None:
    told = await created("openai", CHAT)
    assert told == {
        "input_file_id": "file-1",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"orchestra_batch": KEY},
    }
    TypeAdapter(batch_create_params.BatchCreateParams).validate_python(told, strict=True)


async def test_a_batch_of_groqs_may_take_a_week() -> None:
    groq = pytest.importorskip("groq.types.batch_create_params")
    windows = form("groq").traits.windows
    told = [await created("groq", replace(CHAT, window=window)) for window in windows]
    assert [one["completion_window"] for one in told] == ["24h", "2d", "3d", "4d", "5d", "6d", "7d"]
    for one in told:
        TypeAdapter(groq.BatchCreateParams).validate_python(one)


async def test_a_batch_of_mistrals() -> None:
    told = await created("mistral", replace(CHAT, model="mistral-small-latest"))
    assert told == {
        "input_files": ["file-1"],
        "endpoint": "/v1/chat/completions",
        "model": "mistral-small-latest",
        "metadata": {"orchestra_batch": KEY},
        "timeout_hours": 24,
    }
    assert CreateBatchJobRequest.model_validate(told).timeout_hours == 24


async def test_a_batch_of_togethers() -> None:
    assert await created("together", CHAT) == {
        "input_file_id": "file-1",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }


CUTS: list[Callable[[list[bytes]], list[bytes]]] = [
    lambda lines: lines,
    lambda lines: [b"".join(lines)],
    lambda lines: [b"".join(lines[:2]), b"", *lines[2:]],
    lambda lines: [line.rstrip(b"\n") for line in lines],
]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("count", [1, 3])
async def test_a_batch_of_anthropics(cut: Callable[[list[bytes]], list[bytes]], count: int) -> None:
    from anthropic.types.messages import batch_create_params as params

    order = BatchOrder(KEY, "/v1/messages", "claude-x", headers=(("anthropic-version", "2026-10-21"),))
    lines = [form("anthropic").line(order, BatchLine(f"c{number}", compact(BODY))) for number in range(count)]
    told = await inline("anthropic", order, lines, cut)
    assert told == {"requests": [{"custom_id": f"c{number}", "params": BODY} for number in range(count)]}
    TypeAdapter(params.BatchCreateParams).validate_python(told)
    ask = form("anthropic").create(order, once(*lines), sum(map(len, lines)))
    assert ("anthropic-version", "2026-10-21") in ask.headers


@pytest.mark.parametrize("cut", CUTS)
async def test_a_batch_of_geminis(cut: Callable[[list[bytes]], list[bytes]]) -> None:
    order = BatchOrder(KEY, "/v1beta/models/g:generateContent", "gemini-x")
    request = {"contents": [{"role": "user", "parts": [{"text": "a\nb"}]}]}
    lines = [form("gemini").line(order, BatchLine(f"c{number}", compact(request))) for number in range(3)]
    told = await inline("gemini", order, lines, cut)
    asked = [{"request": request, "metadata": {"key": f"c{number}"}} for number in range(3)]
    assert told == {"batch": {"displayName": KEY, "inputConfig": {"requests": {"requests": asked}}}}


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-x", "/v1beta/models/gemini-x:batchGenerateContent"),
        ("models/gemini-x", "/v1beta/models/gemini-x:batchGenerateContent"),
        ("tunedModels/mine", "/v1beta/tunedModels/mine:batchGenerateContent"),
    ],
)
def test_where_a_batch_of_geminis_is_created(model: str, path: str) -> None:
    assert form("gemini").create(BatchOrder(KEY, "/x", model), once(), 1).path == path


def test_only_one_way_to_hand_in_the_lines() -> None:
    for kind in ("anthropic", "gemini"):
        with pytest.raises(TypeError):
            form(kind).create(CHAT, "file-1")
        assert form(kind).delete_file("file-1") is None
    assert form("openai").delete_file("file-1") == Ask("DELETE", "/files/file-1")


# what follows


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("openai", "/batches/"),
        ("azure", "/openai/v1/batches/"),
        ("groq", "/openai/v1/batches/"),
        ("mistral", "/v1/batch/jobs/"),
        ("together", "/v1/batches/"),
        ("anthropic", "/v1/messages/batches/"),
    ],
)
def test_an_id_is_one_step_of_a_path(kind: str, place: str) -> None:
    assert form(kind).poll("b-1").path == place + "b-1"
    assert form(kind).cancel("b-1") == Ask("POST", place + "b-1/cancel")
    assert form(kind).poll("../x?y").path == place + "%2E%2E%2Fx%3Fy"


def test_a_name_of_geminis_is_a_path_of_its_own() -> None:
    assert form("gemini").poll("batches/b-1").path == "/v1beta/batches/b-1"
    assert form("gemini").cancel("batches/b-1") == Ask("POST", "/v1beta/batches/b-1:cancel")
    assert form("gemini").poll("batches/../x").path == "/v1beta/batches/%2E%2E/x"


@needs_description
async def test_what_we_ask_of_openai_by_its_description() -> None:
    assert list(faults("CreateBatchRequest", await created("openai", CHAT))) == []
    bad = {**await created("openai", CHAT), "endpoint": "/v1/nowhere"}
    assert list(faults("CreateBatchRequest", bad)) != []
    assert list(faults("CreateFileRequest", {"file": "x", "purpose": "batch"})) == []
