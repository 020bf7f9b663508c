"""The batches that we ask for are those of the samples, which were checked against the providers' SDKs."""

import json
from pathlib import Path

import pytest

from orchestra.providers.batches import BatchLine, BatchOrder, form_of_kind

SAMPLES = Path(__file__).parent.parent / "samples"


def sample(name):
    return json.loads((SAMPLES / name).read_text(encoding="utf-8"))


def lines(name):
    return [json.loads(line) for line in (SAMPLES / name).read_text(encoding="utf-8").splitlines()]


def compact(value):
    return json.dumps(value, separators=(",", ":")).encode()


def ordered(model, path="/v1/chat/completions", key="01JSAMPLE"):
    return BatchOrder(key=key, path=path, model=model)


async def whole(body):
    return body if isinstance(body, bytes) else b"".join([piece async for piece in body])


async def given(pieces):
    for piece in pieces:
        yield piece


async def created(form, order, requests):
    """Return the body of a creation that holds its lines."""
    written = [form.line(order, BatchLine(custom_id, compact(body))) for custom_id, body in requests]
    size = sum(len(line.rstrip(b"\n")) + 1 for line in written)
    return json.loads(await whole(form.create(order, given(written), size).body))


@pytest.mark.parametrize(
    ("kind", "name", "model"),
    [("openai", "openai_batch_input.jsonl", "gpt-5.4-mini"), ("mistral", "mistral_batch_input.jsonl", "small")],
)
def test_a_line_of_a_file_is_written_as_the_sample_has_it(kind, name, model):
    form = form_of_kind(kind)
    for line in lines(name):
        told = {**line["body"], "model": model}
        written = form.line(ordered(model), BatchLine(line["custom_id"], compact(told)))
        assert written.endswith(b"\n")
        ours = json.loads(written)
        if "model" not in line["body"]:
            ours["body"].pop("model", None)  # its job has one model for all lines
        assert ours == line


async def test_openai_s_batch_is_created_as_the_sample_has_it():
    wanted = sample("openai_batch_create_request.json")
    wanted.pop("output_expires_after")  # they are read as soon as they are there
    form = form_of_kind("openai")
    ask = form.create(ordered("gpt-5.4-mini"), wanted["input_file_id"])
    assert json.loads(await whole(ask.body)) == wanted


async def test_anthropic_s_batch_is_created_as_the_sample_has_it():
    wanted = sample("anthropic_batch_create_request.json")
    requests = [(one["custom_id"], one["params"]) for one in wanted["requests"]]
    order = ordered("claude-sonnet-5", "/v1/messages")
    assert await created(form_of_kind("anthropic"), order, requests) == wanted


async def test_gemini_s_batch_is_created_inline_as_the_sample_has_it():
    wanted = sample("gemini_batch_create_inline_request.json")
    asked = wanted["batch"]["inputConfig"]["requests"]["requests"]
    requests = [(one["metadata"]["key"], one["request"]) for one in asked]
    key = wanted["batch"]["displayName"]
    made = await created(form_of_kind("gemini"), ordered("gemini-3.8-flash", "/v1/models", key), requests)
    assert made == wanted
    # the same requests in a file, which is not our way, hold the same
    for line in lines("gemini_batch_input.jsonl"):
        (inline,) = (await created(form_of_kind("gemini"), ordered("m"), [(line["key"], line["request"])]))[
            "batch"
        ]["inputConfig"]["requests"]["requests"]
        assert inline == {"request": line["request"], "metadata": {"key": line["key"]}}
    assert sample("gemini_batch_create_file_request.json")["batch"].keys() == made["batch"].keys()
