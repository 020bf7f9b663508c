"""A runner that computes beside the worker's thread, and one whose device runs out of memory."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Collection
from collections.abc import Sequence as Ids
from dataclasses import replace
from typing import Any

import pytest
from engine_lab import VOCABULARY, Bench, SlowRunner, heard, spoken

from orchestra.localengine import EngineConfig, SamplingParams
from orchestra.localengine.errors import EngineDied, PromptTooLong
from orchestra.localengine.events import EngineShrank
from orchestra.localengine.service.loading import LoadedModel
from orchestra.localengine.step import PENDING, OverlappingRunner, RowInput, RowOutput, StepOutOfMemory, StepRunner

SMALL = EngineConfig(block_size=4, max_num_seqs=6, step_tokens=16, interactive_slots=1)


def ids(number: int, length: int = 6) -> list[int]:
    return [(31 * number + place) % (VOCABULARY - 2) + 2 for place in range(length)]


def greedy(max_tokens: int, **options: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, **options)


class ApartRunner(SlowRunner):
    """Computes a step at once, and hands it out when it is collected. Calls ``submitted`` and ``collected``.

    ``ahead`` counts the steps with tokens that nobody had seen when they were submitted.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.under_way: list[list[RowOutput]] = []
        self.drawn: dict[int, int] = {}
        self.ahead = 0
        self.submitted: Callable[[], object] = lambda: None
        self.collected: Callable[[], object] = lambda: None

    def submit(self, rows: Ids[RowInput], abandon: Callable[[], bool] | None = None) -> object:
        pending = [row for row in rows if PENDING in row.token_ids]
        self.ahead += bool(pending)
        known = [replace(row, token_ids=(self.drawn[row.request_id],)) if row in pending else row for row in rows]
        outputs = self.run(known, abandon)
        self.drawn = {output.request_id: output.token_id for output in outputs if output.token_id is not None}
        self.under_way.append(outputs)
        assert len(self.under_way) <= 2, "one step ahead of the one at hand"
        self.submitted()
        return outputs

    def collect(self, step: Any) -> list[RowOutput]:
        self.collected()
        assert self.under_way.pop(0) is step, "in the order of submission"
        outputs: list[RowOutput] = step
        return outputs


class ShortRunner(SlowRunner):
    """Has too little memory for the steps whose numbers are ``fails_at``, counted from 1."""

    def __init__(self, num_blocks: int, block_size: int, *, fails_at: Collection[int], blocks: int) -> None:
        super().__init__(num_blocks, block_size)
        self.fails_at, self.blocks = fails_at, blocks
        self.tried = 0
        self.given_up: list[int] = []

    def run(self, rows: Ids[RowInput], abandon: Callable[[], bool] | None = None) -> list[RowOutput]:
        self.tried += 1
        assert not {block for row in rows for block in row.block_table} & set(self.given_up)
        if self.tried in self.fails_at:
            raise StepOutOfMemory("the GPU is full", blocks=self.blocks, give_up=self._give_up)
        return super().run(rows, abandon)

    def _give_up(self, blocks: Collection[int]) -> None:
        self.poison(list(blocks))
        self.given_up += blocks


class OtherBench(Bench):
    """A bench whose engine has a runner of another kind."""

    def __init__(
        self, make: Callable[[int, int], SlowRunner], config: EngineConfig = SMALL, **options: Any
    ) -> None:
        super().__init__(config, **options)
        self._make = make

    def open_model(self, config: EngineConfig) -> LoadedModel:
        model = super().open_model(config)
        self.runners[-1] = self._make(self.blocks, config.block_size)
        return LoadedModel(
            name=model.name,
            runner=self.runners[-1],
            tokenizer=model.tokenizer,
            encode_chat=model.encode_chat,
            context=model.context,
            threads=model.threads,
        )


def test_what_overlaps_is_told_from_what_does_not() -> None:
    apart: StepRunner = ApartRunner(4, 4)
    plain: StepRunner = SlowRunner(4, 4)
    assert isinstance(apart, OverlappingRunner)
    assert not isinstance(plain, OverlappingRunner)


async def delivered(**options: Any) -> list[tuple[str, int]]:
    """How many tokens were delivered when a step was submitted, and when it was collected."""
    bench = OtherBench(ApartRunner)
    seen: list[tuple[str, int]] = []
    async with bench.engine:
        runner: Any = bench.runner
        runner.submitted = lambda: seen.append(("submitted", bench.engine.stats()["output_tokens"]))
        runner.collected = lambda: seen.append(("collected", bench.engine.stats()["output_tokens"]))
        answer = await bench.engine.complete(ids(1), greedy(6, **options))
    assert answer.text == spoken(heard(ids(1), 6))
    return seen


async def test_a_step_is_submitted_before_the_tokens_of_the_one_before_are_known() -> None:
    assert await delivered() == [
        ("submitted", 0),
        *(("submitted", 0), ("collected", 0)),
        *(("submitted", 1), ("collected", 1)),
        *(("submitted", 2), ("collected", 2)),
        *(("submitted", 3), ("collected", 3)),
        *(("submitted", 4), ("collected", 4)),  # and the last token's is known to be the last
        ("collected", 5),
    ]


async def test_where_they_must_be_known_their_text_is_delivered_while_the_next_step_is_computed() -> None:
    # the first token is delivered at once, the others during the step after theirs, and the last at once again
    assert await delivered(frequency_penalty=0.5) == [
        *(("submitted", 0), ("collected", 0)),
        *(("submitted", 1), ("collected", 1)),
        *(("submitted", 1), ("collected", 2)),
        *(("submitted", 2), ("collected", 3)),
        *(("submitted", 3), ("collected", 4)),
        *(("submitted", 4), ("collected", 5)),
    ]


async def test_every_answer_is_the_one_alone_whatever_ends_it() -> None:
    bench = OtherBench(ApartRunner, blocks=40)

    async def ask(number: int) -> None:
        prompt = ids(number, 3 + number % 9)
        full = spoken(heard(prompt, 14))
        stop = full[number % 7 : number % 7 + 2] if number % 3 == 0 else ""
        params = greedy(14, stop=[stop] if stop else [])
        if number % 5 == 4:  # somebody gives up
            stream = bench.engine.stream(prompt, params, traffic="bulk")
            async with stream as deltas:
                async for _ in deltas:
                    break
            return
        answer = await bench.engine.complete(prompt, params, traffic="bulk" if number % 2 else "interactive")
        assert answer.text == (full[: full.index(stop)] if stop else full)

    async with bench.engine:
        await asyncio.gather(*(ask(number) for number in range(60)))
        stats = await bench.idle()
        assert bench.runner.ahead > 10  # type: ignore[attr-defined]
        assert bench.runner.under_way == []  # type: ignore[attr-defined]
    assert stats["finished"] + stats["cancelled"] == 60


@pytest.mark.parametrize("n", [1, 3])
async def test_a_step_without_memory_is_tried_again_with_fewer_blocks(n: int) -> None:
    bench = OtherBench(lambda blocks, size: ShortRunner(blocks, size, fails_at={3}, blocks=10))
    seen: list[EngineShrank] = []
    async with bench.engine:
        bench.engine.events.subscribe(
            lambda event: seen.append(event) if isinstance(event, EngineShrank) else None
        )
        answers = await asyncio.gather(
            *(bench.engine.complete(ids(number), greedy(8, n=n), traffic="bulk") for number in range(5))
        )
        stats = bench.engine.stats()
    for number, answer in enumerate(answers):
        assert answer.text == spoken(heard(ids(number), 8))
    (event,) = seen
    assert (event.given_up, event.blocks, event.reason) == (10, 54, "the GPU is full")
    assert len(set(bench.runner.given_up)) == 10  # type: ignore[attr-defined]
    assert stats["blocks"]["total"] == 54
    assert stats["out_of_memory"] == 1


async def test_who_does_not_fit_any_more_is_told_and_the_others_go_on() -> None:
    config = EngineConfig(block_size=4, max_num_seqs=2, step_tokens=16, interactive_slots=0)
    bench = OtherBench(lambda blocks, size: ShortRunner(blocks, size, fails_at={3}, blocks=20), config, blocks=30)
    async with bench.engine:
        long = asyncio.create_task(bench.engine.complete(ids(1, 60), greedy(4, n=2), traffic="bulk"))
        short = asyncio.create_task(bench.engine.complete(ids(2), greedy(8), traffic="bulk"))
        with pytest.raises(PromptTooLong, match=r"10 blocks of 4 tokens that are left do not hold it"):
            await long
        assert (await short).text == spoken(heard(ids(2), 8))
        with pytest.raises(PromptTooLong):  # and whoever comes later, before anything is computed
            await bench.engine.complete(ids(1, 60), greedy(4), traffic="bulk")
        stats = bench.engine.stats()
    assert stats["blocks"]["free"] == 10


@pytest.mark.parametrize(("fails_at", "blocks"), [({2, 3}, 5), ({2}, 64)], ids=["twice", "all"])
async def test_an_engine_that_has_no_memory_left_says_so_and_ends(fails_at: set[int], blocks: int) -> None:
    bench = OtherBench(lambda total, size: ShortRunner(total, size, fails_at=fails_at, blocks=blocks))
    async with bench.engine:
        with pytest.raises(EngineDied, match="the GPU is full"):
            await bench.engine.complete(ids(1), greedy(8))


async def test_a_failure_that_was_overcome_is_no_reason_to_end_later() -> None:
    bench = OtherBench(lambda total, size: ShortRunner(total, size, fails_at={2, 5, 9}, blocks=5))
    async with bench.engine:
        answer = await bench.engine.complete(ids(1), greedy(12))
        assert bench.engine.stats()["blocks"]["total"] == 49
    assert answer.text == spoken(heard(ids(1), 12))


async def test_completions_that_were_to_follow_and_do_not_fit_any_more_are_told() -> None:
    """Their length was left open, and the first was shortened when the cache became smaller."""
    bench = OtherBench(lambda total, size: ShortRunner(total, size, fails_at={1}, blocks=50), blocks=64)
    async with bench.engine:
        answer = await bench.engine.complete(ids(1), SamplingParams(temperature=0, n=3), traffic="bulk")
        assert len(answer.others) == 2
        assert all(other.usage.completion_tokens <= 14 * 4 for other in (answer, *answer.others))
        stats = await asyncio.wait_for(asyncio.to_thread(bench.engine.stats), 30)
    assert stats["blocks"]["free"] == 14


async def test_one_that_was_taken_in_before_the_cache_became_smaller_ends_no_other() -> None:
    bench = OtherBench(lambda total, size: ShortRunner(total, size, fails_at={2}, blocks=50), blocks=64)
    async with bench.engine:
        runner: Any = bench.runner
        give_up = runner._give_up

        def meanwhile(blocks: Collection[int]) -> None:
            bench.engine._worker._limits = before  # as it is for who asks in this instant
            asyncio.run_coroutine_threadsafe(ask_late(), loop).result(30)
            give_up(blocks)

        runner._give_up = meanwhile
        before, loop = bench.engine._worker._limits, asyncio.get_running_loop()
        late: list[asyncio.Task[Any]] = []

        async def ask_late() -> None:
            late.append(asyncio.create_task(bench.engine.complete(ids(2, 100), greedy(4), traffic="bulk")))
            await asyncio.sleep(0)
            await bench.until(lambda: bench.engine.stats()["waiting"]["bulk"])

        assert (await bench.engine.complete(ids(1), greedy(8), traffic="bulk")).text == spoken(heard(ids(1), 8))
        with pytest.raises(PromptTooLong):
            await late[0]


async def test_an_engine_that_died_lets_go_of_its_model() -> None:
    bench = OtherBench(ApartRunner)
    async with bench.engine:
        bench.runner.fail_next = True
        with pytest.raises(EngineDied):
            await bench.engine.complete(ids(1), greedy(4))
        runner = weakref.ref(bench.runner)
        bench.runners.clear()
        await bench.engine.start()
        gc.collect()
        assert runner() is None
        assert (await bench.engine.complete(ids(1), greedy(4))).text == spoken(heard(ids(1), 4))


async def test_what_was_drawn_before_an_engine_died_is_read_first() -> None:
    bench = OtherBench(ApartRunner)
    read: list[int] = []
    async with bench.engine:
        runner: Any = bench.runner

        def count() -> None:
            runner.fail_next = runner.steps == 4

        runner.submitted = count

        async def listen() -> None:
            # a penalty, so that no step is submitted ahead, and tokens are delivered late
            async for delta in bench.engine.stream(ids(1), greedy(8, frequency_penalty=0.5)):
                read.extend(delta.token_ids)

        with pytest.raises(EngineDied):
            await listen()
    assert read == heard(ids(1), 8)[:4]
