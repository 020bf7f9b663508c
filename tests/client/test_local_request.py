"""What the local route makes of a request in OpenAI's form."""

import json
from typing import Any

import pytest

from orchestra.errors import InputError
from orchestra.local_route.request import endpoint_of, read_request
from orchestra.localengine.request import Chat
from orchestra.localengine.sampling_params import Structure

ASK = [{"role": "user", "content": "Hello"}]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def call(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }


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


def test_what_changes_the_odds_reaches_the_engine() -> None:
    sampling = chat(
        n=3,
        min_p=0.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias={"50256": -100},
        min_tokens=4,
        logprobs=True,
        top_logprobs=2,
    ).sampling
    assert (sampling.n, sampling.min_p, sampling.min_tokens) == (3, 0.1, 4)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -0.5, 1.1)
    assert (sampling.logit_bias, sampling.logprobs) == ({50256: -100}, 2)
    assert chat(logprobs=True).sampling.logprobs == 0
    assert chat(logprobs=False, top_logprobs=0).sampling.logprobs is None
    assert (text(logprobs=3).sampling.logprobs, text(prompt_logprobs=1).sampling.prompt_logprobs) == (3, 1)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"response_format": {"type": "json_object"}}, ("json_object", "")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            ("json_schema", json.dumps(SCHEMA)),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, ("json_schema", json.dumps(SCHEMA))),
        ({"structured_outputs": {"regex": "a+"}}, ("regex", "a+")),
        ({"structured_outputs": {"choice": ["yes", "no."]}}, ("regex", "yes|no\\.")),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, ("grammar", 'start: "a"')),
    ],
)
def test_the_form_of_an_answer_reaches_the_engine(fields: dict[str, Any], form: tuple[str, str]) -> None:
    assert chat(**fields).sampling.structure == Structure(*form)  # type: ignore[arg-type]
    assert chat(**fields).form_field == next(iter(fields))


def test_tools_come_to_the_engine_with_the_messages() -> None:
    messages = [*ASK, call("f", '{"x": 1}'), {"role": "tool", "tool_call_id": "c", "content": "2"}]
    request = chat(messages=messages, tools=[TOOL], parallel_tool_calls=False)
    assert isinstance(request.prompt, Chat)
    assert request.prompt.messages == [*ASK, {**call("f", '{"x": 1}'), "content": ""}, messages[2]]
    assert request.prompt.tools == [TOOL]
    assert (request.prompt.tool_choice, request.prompt.parallel) == ("auto", False)
    assert chat(tools=[TOOL], tool_choice="none").prompt == ASK
    assert chat(tools=[TOOL], tool_choice="required").prompt.tool_choice == "required"
    named = {"type": "function", "function": {"name": "f"}}
    assert chat(tools=[TOOL], tool_choice=named).prompt.tool_choice == "f"


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
        {"functions": [{"name": "f"}]},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "alloy", "format": "wav"}},
        {"web_search_options": {}},
        {"best_of": 2},
        {"max_tokns": 5},
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(InputError, match=f"cannot do '{name}' yet") as caught:
        chat(**fields)
    assert caught.value.param == name
    assert ("did you mean 'max_tokens'?" in str(caught.value)) == (name == "max_tokns")


def test_no_route_takes_a_temperature_that_providers_refuse() -> None:
    assert chat(temperature=2).sampling.temperature == 2
    with pytest.raises(InputError, match="temperature must be at most 2") as caught:
        chat(temperature=9)
    assert caught.value.param == "temperature"


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
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": "2"}, "n"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": "much"}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"logit_bias": {"Paris": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"logprobs": 5}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 101}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object"}, "stop": "x"}, "stop"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [*ASK, "Hello"]}, "messages[1]"),
        ({"messages": [*ASK, {"role": "robot", "content": "x"}]}, "messages[1].role"),
        ({"messages": [*ASK, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [*ASK, {"role": "function", "content": "x", "name": "f"}]}, "messages[1].role"),
        ({"messages": [*ASK, {"role": "tool", "tool_call_id": "1"}]}, "messages[1].content"),
        ({"messages": [*ASK, {"role": "assistant", "tool_calls": [{}]}]}, "messages[1].tool_calls[0]"),
        ({"messages": [*ASK, call("f", "[]")]}, "messages[1].tool_calls[0].function.arguments"),
        ({"messages": [*ASK, call("f", "{")]}, "messages[1].tool_calls[0].function.arguments"),
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
