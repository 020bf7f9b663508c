"""Our wire models read what each provider's documentation shows, and lose nothing of it."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from orchestra.openai_types import ChatCompletion, ChatCompletionChunk

SAMPLES = Path(__file__).parent.parent / "samples"


def contained(part: object, whole: object) -> bool:
    """Whether every key and value of ``part`` is in ``whole``."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contained(part[key], whole[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) == len(whole) and all(map(contained, part, whole))
    return part == whole


@pytest.mark.parametrize("provider", ["openai", "vllm", "groq", "mistral"])
def test_a_completion_survives_the_round_trip(provider: str) -> None:
    sample = json.loads((SAMPLES / f"{provider}_chat_completion.json").read_bytes())
    reply = ChatCompletion.model_validate(sample)
    assert reply.text == reply.choices[0].message.content == "Yellow."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert contained(sample, json.loads(reply.model_dump_json()))


def test_cached_tokens_are_zero_where_unknown() -> None:
    openai = ChatCompletion.model_validate_json((SAMPLES / "openai_chat_completion.json").read_bytes())
    vllm = ChatCompletion.model_validate_json((SAMPLES / "vllm_chat_completion.json").read_bytes())
    assert openai.usage is not None
    assert openai.usage.cached_tokens == 1024
    assert vllm.usage is not None
    assert vllm.usage.cached_tokens == 0


@pytest.mark.parametrize("stream", ["sse_chat_stream.txt", "sse_groq_stream.txt"])
def test_every_chunk_of_a_stream_is_read(stream: str) -> None:
    lines = (SAMPLES / stream).read_text().splitlines()
    samples = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    chunks = [ChatCompletionChunk.model_validate(sample) for sample in samples]
    assert "".join(chunk.text for chunk in chunks) == "Yellow."
    assert all(map(contained, samples, (json.loads(chunk.model_dump_json()) for chunk in chunks)))


def test_the_first_chunk_of_azure_which_leaves_everything_empty_is_read() -> None:
    filters = {"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": []}
    assert ChatCompletionChunk.model_validate(filters).text == ""


def test_content_in_parts_is_joined() -> None:
    message = {"role": "assistant", "content": [{"type": "thinking"}, {"type": "text", "text": "Yellow."}]}
    assert ChatCompletion.model_validate({"choices": [{"message": message}]}).text == "Yellow."


@pytest.mark.parametrize("body", [{}, {"error": {"message": "no"}}, {"choices": None}, [], {"choices": [{}]}])
def test_what_is_no_completion_is_refused(body: object) -> None:
    with pytest.raises(ValidationError):
        ChatCompletion.model_validate(body)
