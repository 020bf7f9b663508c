"""Tool calls: how each family writes them, how they are read from a stream, and how a call is demanded."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_lab import TinyBench

from orchestra.localengine import SamplingParams
from orchestra.localengine.errors import ParameterError
from orchestra.localengine.request import Chat, ToolCall
from orchestra.localengine.text.tools import ToolParser, ToolSyntax, call_structure, for_template, tool_syntax

NAMES = ("get_weather", "add")


def family(template: str) -> ToolSyntax:
    return tool_syntax(template, lambda text: [text])


HERMES = family("{% if tools %}<tools>...<tool_call>{% endif %}")
LLAMA = family("<|start_header_id|>{% if tools %}{% endif %}")
MISTRAL = family("[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]")
MISTRAL_NAMED = family("[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]{{ name }}[ARGS]")
UNKNOWING = family("<|im_start|>{{ message.content }}")

PARIS = ToolCall("get_weather", '{"city": "Paris"}')
SUM = ToolCall("add", '{"a": 1, "b": [2]}')
ONE = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
TWO = '{"name": "add", "arguments": {"a": 1, "b": [2]}}'
LLAMA_ONE = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
LLAMA_TWO = '{"name": "add", "parameters": {"a": 1, "b": [2]}}'

OUTPUTS: list[tuple[ToolSyntax, str, str, list[ToolCall]]] = [
    (HERMES, "Just text.\n", "Just text.\n", []),
    (HERMES, f"<tool_call>\n{ONE}\n</tool_call>", "", [PARIS]),
    (HERMES, f"Let me see.\n\n<tool_call>\n{ONE}\n</tool_call>\n", "Let me see.", [PARIS]),
    (HERMES, f"<tool_call>\n{ONE}\n</tool_call>\n<tool_call>{TWO}</tool_call>", "", [PARIS, SUM]),
    (HERMES, f"<tool_call>[{ONE}, {TWO}]</tool_call>", "", [PARIS, SUM]),  # SmolLM2
    (HERMES, f"<tool_call>\n{ONE}", "", [PARIS]),  # it ended without the closing mark
    (HERMES, f"<tool_call>{ONE}</tool_call> Done.", " Done.", [PARIS]),
    (HERMES, "<tool_call>no JSON</tool_call>", "<tool_call>no JSON</tool_call>", []),
    (HERMES, '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', None, []),  # type: ignore[list-item]
    (HERMES, "a < b <tool", "a < b <tool", []),
    (HERMES, "<tool_call>", "<tool_call>", []),
    (HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": [2]}"}</tool_call>', "", [SUM]),
    (HERMES, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', None, []),  # type: ignore[list-item]
    (LLAMA, LLAMA_ONE, "", [PARIS]),
    (LLAMA, f"<|python_tag|>{LLAMA_ONE}", "", [PARIS]),
    (LLAMA, f"{LLAMA_ONE}; {LLAMA_TWO}", "", [PARIS, SUM]),
    (LLAMA, f"\n{LLAMA_ONE}\n", "", [PARIS]),
    (LLAMA, '{"answer": 42}', '{"answer": 42}', []),
    (LLAMA, f"Text, and {LLAMA_ONE}", f"Text, and {LLAMA_ONE}", []),
    (MISTRAL, f"[TOOL_CALLS][{ONE}, {TWO}]", "", [PARIS, SUM]),
    (MISTRAL, f"[TOOL_CALLS] [{ONE}]", "", [PARIS]),
    (MISTRAL, f"Sure.[TOOL_CALLS][{ONE}]", "Sure.", [PARIS]),
    (MISTRAL, "[1, 2]", "[1, 2]", []),
    (
        MISTRAL_NAMED,
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]add[CALL_ID]x1[ARGS]{"a": 1, "b": [2]}',
        "",
        [PARIS, SUM],
    ),
    (MISTRAL_NAMED, '[TOOL_CALLS]get_weather{"city": "Paris"}', "", [PARIS]),
]


@pytest.mark.parametrize(("syntax", "output", "text", "calls"), OUTPUTS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_read_from_any_pieces(
    syntax: ToolSyntax, output: str, text: str | None, calls: list[ToolCall], size: int
) -> None:
    parser = ToolParser(syntax, NAMES)
    parts = [parser.push(output[i : i + size]) for i in range(0, len(output), size)]
    parts.append(parser.flush())
    assert [call for _, found in parts for call in found] == calls
    assert "".join(plain for plain, _ in parts) == (output if text is None else text)


@settings(deadline=None, max_examples=200)
@given(
    pieces=st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", ONE, TWO, "<", "tool", " ", "\n", "x", "{", "[TOOL_CALLS]", "🎉"]
        ),
        max_size=8,
    ),
    syntax=st.sampled_from([HERMES, LLAMA, MISTRAL, MISTRAL_NAMED]),
    cuts=st.lists(st.integers(0, 60), max_size=6),
)
def test_how_an_output_is_cut_makes_no_difference(pieces: list[str], syntax: ToolSyntax, cuts: list[int]) -> None:
    output = "".join(pieces)
    whole, cut = ToolParser(syntax, NAMES), ToolParser(syntax, NAMES)
    wanted = [whole.push(output), whole.flush()]
    edges = sorted({0, len(output), *(edge for edge in cuts if edge < len(output))})
    parts = [cut.push(output[a:b]) for a, b in itertools.pairwise(edges)] + [cut.flush()]
    assert "".join(text for text, _ in parts) == "".join(text for text, _ in wanted)
    assert [call for _, calls in parts for call in calls] == [call for _, calls in wanted for call in calls]
    if not any(calls for _, calls in wanted):
        assert "".join(text for text, _ in wanted).replace(syntax.opening, "") == output.replace(
            syntax.opening, ""
        )


def test_text_before_a_call_is_not_held_back_longer_than_needed() -> None:
    parser = ToolParser(HERMES, NAMES)
    assert parser.push("Let me ")[0] == "Let me"
    assert parser.push("see <")[0] == " see"
    assert parser.push("b")[0] == " <b"


def test_without_parallel_the_first_call_counts() -> None:
    parser = ToolParser(HERMES, NAMES, parallel=False)
    calls = [
        *parser.push(f"<tool_call>[{ONE}, {TWO}]</tool_call><tool_call>{TWO}</tool_call>")[1],
        *parser.flush()[1],
    ]
    assert calls == [PARIS]


# Demanded calls

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 5}, "unit": {"$ref": "#/$defs/unit"}},
            "required": ["city", "unit"],
            "additionalProperties": False,
            "$defs": {"unit": {"enum": ["C", "F"]}},
        },
    },
}
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "properties": {"a": {"enum": [1, 2]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
TEMPLATES = [
    "{% if tools %}<tool_call>{% endif %}",
    "<|start_header_id|>{% if tools %}{% endif %}",
    "{{ tools }}[TOOL_CALLS]",
    "{{ tools }}[TOOL_CALLS][ARGS]",
    "{{ message.content }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("choice", ["required", "add"])
async def test_a_demanded_call_is_made_and_its_arguments_fit(template: str, choice: str) -> None:
    async with TinyBench(template=template).engine as engine:
        ask = Chat([{"role": "user", "content": "Weather?"}], [WEATHER, ADD], choice)
        for seed in range(2):
            whole = await engine.complete(ask, SamplingParams(seed=seed, max_tokens=150, stop=("a",)))
            assert (whole.finish_reason, whole.text) == ("stop", "")
            (call,) = whole.tool_calls
            assert choice in ("required", call.name)
            tool = WEATHER if call.name == "get_weather" else ADD
            jsonschema.validate(json.loads(call.arguments), tool["function"]["parameters"])


async def test_a_demanded_call_streams_as_a_call_and_a_cut_one_as_text() -> None:
    async with TinyBench(template=TEMPLATES[0]).engine as engine:
        ask = Chat([{"role": "user", "content": "Weather?"}], [ADD], "required")
        deltas = [delta async for delta in engine.stream(ask, SamplingParams(seed=1, max_tokens=150))]
        assert [call.name for delta in deltas for call in delta.tool_calls] == ["add"]
        assert not any(delta.text for delta in deltas)
        cut = await engine.complete(ask, SamplingParams(seed=1, max_tokens=12))
    assert (cut.finish_reason, cut.tool_calls) == ("length", ())
    assert cut.text.startswith("<tool_call>")


async def test_what_is_no_tool_is_refused() -> None:
    async with TinyBench(template=TEMPLATES[0]).engine as engine:
        ask = [{"role": "user", "content": "x"}]
        for tools, choice, field in (
            ([ADD], "subtract", "tool_choice"),
            ([{"type": "function"}], "auto", "tools"),
            ([{"type": "function", "function": {"name": "f", "parameters": 5}}], "auto", "tools"),
        ):
            with pytest.raises(ParameterError) as caught:
                await engine.complete(Chat(ask, tools, choice))
            assert caught.value.field == field


def test_no_call_is_demanded_by_default() -> None:
    assert call_structure(HERMES, Chat([], [ADD])) is None


# What templates are given


def test_a_template_without_tools_gets_them_in_the_system_message() -> None:
    assert not UNKNOWING.known
    function = {"name": "add", "arguments": '{"a": 1}'}
    messages = [
        {"role": "user", "content": "1 + 1?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ]
    told = for_template(UNKNOWING, Chat(messages, [ADD]))
    assert not told.tools
    system, *rest = told.messages
    assert system["role"] == "system"
    assert '"name": "add"' in str(system["content"])
    assert [message["role"] for message in rest] == ["user", "assistant", "user"]
    assert rest[1]["content"] == '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert "2" in str(rest[2]["content"])
    before = {"role": "system", "content": "Be brief."}
    joined = for_template(UNKNOWING, Chat([before, *messages], [ADD])).messages
    assert str(joined[0]["content"]).startswith("Be brief.\n\n")
    assert len(joined) == 4


def test_mistral_gets_ids_of_nine_letters_that_still_match() -> None:
    function = {"name": "add", "arguments": "{}"}
    chat = Chat(
        [
            {
                "role": "assistant",
                "tool_calls": [{"id": "call_abcdef0123", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "call_abcdef0123", "content": "2"},
        ],
        [ADD],
    )
    call, result = for_template(MISTRAL, chat).messages
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]  # type: ignore[index]
    assert len(str(result["tool_call_id"])) == 9


def test_control_tokens_among_the_marks_are_read() -> None:
    syntax = tool_syntax("{{ tools }}[TOOL_CALLS]", lambda text: [7] if text == "[TOOL_CALLS]" else [text])
    assert syntax.visible == {7}
