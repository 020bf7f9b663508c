"""What the engine refuses before a request reaches the thread that all requests share."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_lab import Bench

from orchestra.localengine import EngineConfig, SamplingParams
from orchestra.localengine.errors import PromptError


@pytest.mark.parametrize(
    ("field", "values"),
    {
        "max_tokens": [0, -1, 2.5, "3", True],
        "temperature": [-0.1, 101, float("nan"), float("inf"), "1", None, True],
        "top_k": [-1, 1.5, "a", None, True],
        "top_p": [0, -1, 1.1, float("nan"), "x", None, True],
        "seed": ["x", 1.5, True],
        "stop": ["text", 5, None, ("",), (1,)],
        "stop_after": ["", 5, ("a",)],
        "stop_token_ids": [5, "12", ("a",), ([1],), (1.5,), None],
        "ignore_eos": ["x", 1, None],
    }.items(),
)
def test_a_value_of_another_type_or_range_is_refused(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=field):
            SamplingParams(**{field: value})


def test_extreme_values_are_values() -> None:
    SamplingParams(max_tokens=10**30, temperature=5e-324, top_k=2**70, top_p=5e-324, seed=-(2**200), stop=["a"])


@pytest.mark.parametrize(
    "prompt", [None, 5, {"role": "user", "content": "x"}, {1: 2}, b"abc", bytearray(b"a"), [1.5], [1, "a"], [[1]]]
)
async def test_a_prompt_of_another_type_is_a_prompt_error(prompt: Any) -> None:
    async with Bench().engine as engine:
        with pytest.raises(PromptError, match="a prompt is text"):
            await engine.complete(prompt)
        with pytest.raises(PromptError, match="a prompt is text"):
            engine.check(prompt)


async def test_a_step_that_fails_and_books_that_are_wrong_leave_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The books may be in any state after a failed step; a cancellation that trips over them changes nothing."""
    bench = Bench(EngineConfig(block_size=4, max_num_seqs=4))
    async with bench.engine as engine:
        bench.runner.gate.clear()
        params = SamplingParams(max_tokens=50, temperature=0)
        calls = [asyncio.create_task(engine.complete([5] * 4, params)) for _ in range(3)]
        await bench.until(lambda: bench.known("interactive") == 3 and bench.runner.in_step.is_set())

        def broken(*_: object) -> None:
            raise ValueError("wrong books")

        monkeypatch.setattr("orchestra.localengine.scheduling.state.SchedulerState.remove", broken)
        calls[0].cancel()
        await asyncio.sleep(0)
        bench.runner.fail_next = True
        bench.runner.gate.set()
        ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
    assert [type(end).__name__ for end in ends] == ["CancelledError", "EngineDied", "EngineDied"]


def test_too_many_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="threads must be at most"):
        EngineConfig(threads=100_000)
