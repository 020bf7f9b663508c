"""Outputs held to a form: they parse, in any company, and cost the free rows nothing."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

import jsonschema
import pytest
from engine_lab import Pause
from token_lab import TinyBench

from orchestra.localengine import EngineConfig, SamplingParams
from orchestra.localengine.errors import EngineError, GrammarError
from orchestra.localengine.sampling_params import Structure
from orchestra.localengine.text.structure import Constraint

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "size": {"enum": ["S", "M", "L"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}
FORMS = [
    Structure("json_schema", json.dumps(SCHEMA)),
    Structure("json_schema", '{"type": "array", "items": {"type": "integer"}, "maxItems": 4}'),
    Structure("json_object"),
    Structure("regex", r"[a-c]{2,5}(-[0-9]+)?"),
    Structure("regex", "Köln|東京|🎉"),
    Structure("grammar", 'start: "yes" | "no" " " /[a-z]{1,3}/'),
]


def check(form: Structure, text: str) -> None:
    match form.kind:
        case "json_object":
            assert isinstance(json.loads(text), dict)
        case "json_schema":
            jsonschema.validate(json.loads(text), json.loads(form.definition))
        case "regex":
            assert re.fullmatch(form.definition, text)
        case "grammar":
            assert re.fullmatch("yes|no [a-z]{1,3}", text)


def request(rng: random.Random) -> tuple[str, SamplingParams]:
    options: dict[str, Any] = {"seed": rng.randrange(99), "temperature": rng.choice([0, 1, 1])}
    if rng.random() < 0.6:
        options |= {"structure": rng.choice(FORMS), "max_tokens": rng.choice([3, 40, 150])}
    else:
        options |= {"max_tokens": rng.choice([5, 30]), "frequency_penalty": rng.choice([0, 1])}
    return rng.choice(["Hello", "abc" * 9]), SamplingParams(**options)


@pytest.mark.parametrize("seed", range(3))
async def test_rows_with_and_without_a_form_side_by_side_are_as_they_are_alone(seed: int) -> None:
    rng = random.Random(seed)
    requests = [request(rng) for _ in range(12)]
    config = EngineConfig(block_size=4, max_num_seqs=5, step_tokens=12, interactive_slots=1)
    crowd = TinyBench(config, blocks=60)
    async with crowd.engine as engine:
        pause = Pause(crowd.runner, lambda: crowd.runner.steps > 4)
        filler = [
            engine.stream("z", SamplingParams(max_tokens=90, ignore_eos=True), traffic="bulk") for _ in range(2)
        ]
        fillers = [crowd.read(stream) for stream in filler]
        bulk = [asyncio.create_task(engine.complete(*one, traffic="bulk")) for one in requests[:6]]
        await asyncio.to_thread(pause.reached.wait, 50)
        interactive = [asyncio.create_task(engine.complete(*one)) for one in requests[6:]]
        await crowd.until(lambda: engine.stats()["waiting"]["interactive"] == 6)
        pause.over.set()
        together = await asyncio.gather(*bulk, *interactive)
        await asyncio.gather(*fillers)
        await crowd.idle()
        assert engine.stats()["displacements"] > 0
    async with TinyBench(config, blocks=60).engine as engine:
        alone = [await engine.complete(*one) for one in requests]
    for ours, one, (_, params) in zip(together, alone, requests, strict=True):
        assert ours.token_ids == one.token_ids
        assert ours.finish_reason == one.finish_reason
        if params.structure is not None and ours.finish_reason == "stop":
            check(params.structure, ours.text)
        elif params.structure is not None:
            assert len(ours.token_ids) == params.max_tokens


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.kind} {form.definition[:20]}")
async def test_what_ends_by_itself_is_whole(form: Structure) -> None:
    async with TinyBench().engine as engine:
        runs = [engine.complete("x", SamplingParams(seed=n, max_tokens=200, structure=form)) for n in range(6)]
        ended = [one for one in await asyncio.gather(*runs) if one.finish_reason == "stop"]
        assert ended
        for one in ended:
            check(form, one.text)
        cut = await engine.complete("x", SamplingParams(seed=0, max_tokens=1, structure=form))
    assert cut.finish_reason in ("length", "stop")


async def test_a_cut_output_says_length() -> None:
    async with TinyBench().engine as engine:
        cut = await engine.complete("x", SamplingParams(max_tokens=4, structure=FORMS[0]))
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 4)


@pytest.mark.lab_too
async def test_several_completions_are_each_held_to_the_form() -> None:
    async with TinyBench().engine as engine:
        params = SamplingParams(n=4, seed=3, max_tokens=60, structure=FORMS[3])
        whole = await engine.complete("x", params)
    for one in [whole, *whole.others]:
        check(FORMS[3], one.text)
    assert len({one.text for one in [whole, *whole.others]}) > 1


@pytest.mark.lab_too
async def test_logprobs_of_a_form_are_the_models_own_or_those_drawn_by() -> None:
    async with TinyBench().engine as engine:
        options: dict[str, Any] = {
            "seed": 1,
            "max_tokens": 9,
            "structure": Structure("regex", "ab"),
            "logprobs": 2,
        }
        raw = await engine.complete("x", SamplingParams(**options))
        processed = await engine.complete("x", SamplingParams(**options, logprobs_mode="processed"))
    assert raw.text == processed.text == "ab"
    assert raw.logprobs is not None
    assert processed.logprobs is not None
    assert all(one.logprob < -0.5 for one in raw.logprobs)
    assert processed.logprobs[-1].logprob > raw.logprobs[-1].logprob


@pytest.mark.parametrize(
    "form",
    [
        Structure("json_schema", '{"type": "nonsense"}'),
        Structure("json_schema", "[1]"),
        Structure("json_schema", "{"),
        Structure("json_schema", '{"not": {"type": "string"}}'),
        Structure("regex", "(a"),
        Structure("regex", "(?=a)b"),
        Structure("grammar", 'start: "x" missing'),
        Structure("grammar", " " * (1 << 21)),
    ],
    ids=lambda form: f"{form.kind} {form.definition[:20]}",
)
async def test_a_form_that_cannot_be_compiled_is_refused_at_submit(form: Structure) -> None:
    bench = TinyBench()
    async with bench.engine as engine:
        for _ in range(2):
            with pytest.raises(GrammarError, match=form.kind):
                await engine.complete("x", SamplingParams(structure=form))
        with pytest.raises(GrammarError, match=form.kind):
            engine.check("x", SamplingParams(structure=form))
        assert bench.runner.steps == 0


async def test_a_form_that_becomes_too_complex_fails_its_own_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = Constraint.accept

    def too_complex(self: Constraint, token_id: int) -> bool:
        self._matcher.consume_token(0)  # a control token: none that a form allows
        return accept(self, token_id)

    bench = TinyBench()
    async with bench.engine as engine:
        other = asyncio.create_task(engine.complete("y", SamplingParams(max_tokens=20, ignore_eos=True)))
        monkeypatch.setattr(Constraint, "accept", too_complex)
        with pytest.raises(EngineError, match="cannot be followed"):
            await engine.complete("x", SamplingParams(structure=FORMS[0]))
        assert len((await other).token_ids) == 20
        await bench.idle()


@pytest.mark.parametrize(
    ("field", "value"), [("stop", ("x",)), ("stop_token_ids", (5,)), ("ignore_eos", True), ("min_tokens", 2)]
)
def test_what_else_would_end_or_prolong_the_output_is_refused_beside_a_form(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be left out"):
        SamplingParams(structure=FORMS[0], **{field: value})


def test_a_structure_has_a_kind_and_what_it_needs() -> None:
    for kind, definition in (("xml", "x"), ("json_object", "{}"), ("regex", ""), ("grammar", 5)):
        with pytest.raises(ValueError, match="structure"):
            Structure(kind, definition)  # type: ignore[arg-type]


async def test_white_space_cannot_fill_the_output() -> None:
    async with TinyBench().engine as engine:
        spaces = {ord(char) + 2: 100.0 for char in " \n\t\r"}
        form = Structure("json_schema", '{"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}')
        one = await engine.complete("x", SamplingParams(logit_bias=spaces, max_tokens=200, structure=form))
    assert one.finish_reason == "stop"
    assert json.loads(one.text) == [1, 1]
