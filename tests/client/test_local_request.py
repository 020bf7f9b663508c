"""What the local route makes of a request in OpenAI's form."""

from typing import Any

import pytest

from orchestra.errors import InputError
from orchestra.local_route.request import endpoint_of, read_request

ASK = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> Any:
    return read_request("chat", {"model": "smollm2", "messages": ASK, **fields})


def text(**fields: Any) -> Any:
    return read_request("completions", {"model": "smollm2", "prompt": "Hello", **fields})


def test_the_engine_gets_what_the_caller_asked_for() -> None:
    request = chat(
        max_completion_tokens=7, temperature=0, top_p=0.5, top_k=3, seed=-1, stop=["a", "b", "c", "d", "e"], n=1
    )
    sampling = request.sampling
    assert request.prompt == ASK
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0, 0.5, 3)
    assert (sampling.seed, sampling.stop) == (-1, ("a", "b", "c", "d", "e"))
    assert not request.streams


def test_defaults_are_openais() -> None:
    assert chat().sampling.max_tokens is None
    assert chat().sampling.temperature == 1
    assert text().sampling.max_tokens == 16


def test_null_means_absent() -> None:
    request = chat(
        max_tokens=None, temperature=None, stop=None, tools=None, stream=None, logprobs=None, anything=None
    )
    assert request.sampling == chat().sampling


def test_hints_that_cannot_change_the_text_are_left_aside() -> None:
    request = chat(
        user="u", metadata={"a": "b"}, store=True, service_tier="flex", prompt_cache_key="k", priority=3
    )
    assert request == chat()


@pytest.mark.parametrize(
    ("options", "wanted"),
    [({"include_usage": True}, True), ({"include_usage": False}, False), ({}, False), (None, False)],
)
def test_usage_comes_with_a_stream_only_where_asked(options: Any, wanted: bool) -> None:
    assert chat(stream=True, stream_options=options).include_usage is wanted
    assert not chat(stream=False, stream_options=options).include_usage


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"tools": []},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"logprobs": False},
        {"logit_bias": {}},
        {"presence_penalty": 0.0},
        {"modalities": ["text"]},
    ],
)
def test_fields_that_ask_for_nothing_are_welcome(fields: dict[str, Any]) -> None:
    assert chat(**fields) == chat()


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"functions": [{"name": "f"}]},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"logprobs": True},
        {"top_logprobs": 3},
        {"logit_bias": {"50256": -100}},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "alloy", "format": "wav"}},
        {"web_search_options": {}},
        {"min_p": 0.1},
        {"max_tokns": 5},
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(InputError, match=f"cannot do '{name}' yet") as caught:
        chat(**fields)
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"seed": "7"}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": {}}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [*ASK, "Hello"]}, "messages[1]"),
        ({"messages": [*ASK, {"role": "robot", "content": "x"}]}, "messages[1].role"),
        ({"messages": [*ASK, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [*ASK, {"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[1].role"),
        ({"messages": [*ASK, {"role": "assistant", "tool_calls": [{}]}]}, "messages[1].tool_calls"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": ["Hello"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InputError) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert param.partition(".")[0] in str(caught.value)


def test_messages_come_to_the_engine_as_role_and_text() -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "annotations": [], "tool_calls": None},
    ]
    assert chat(messages=messages).prompt == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
    ]


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("Hello", "Hello"), (["Hello"], "Hello"), ([1, 2, 3], [1, 2, 3]), ([[1, 2, 3]], [1, 2, 3])],
)
def test_a_prompt_is_text_or_token_ids(prompt: Any, read: Any) -> None:
    assert text(prompt=prompt).prompt == read


@pytest.mark.parametrize(
    "prompt", ["", [], [""], [[]], ["a", "b"], [[1], [2]], [1, -2], [True], [1, "a"], None, 5]
)
def test_other_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(InputError, match="prompt") as caught:
        text(prompt=prompt)
    assert caught.value.param == "prompt"


def test_a_body_that_is_no_object_is_refused() -> None:
    with pytest.raises(InputError, match="not a JSON object"):
        read_request("chat", None)


def test_the_endpoint_is_known_by_the_path() -> None:
    assert endpoint_of("https://api.openai.com/v1/chat/completions?api-version=1") == "chat"
    assert endpoint_of("https://orchestra.invalid/v1/completions") == "completions"
    with pytest.raises(InputError, match="/v1/embeddings"):
        endpoint_of("https://orchestra.invalid/v1/embeddings")
