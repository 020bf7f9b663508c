"""The GPU's runner on a device that is none, against the CPU's: what it computes, and in what order it does so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest
import torch
from devices import running_on
from gpu_lab import FakeDevice, fake_kernels, on_device, weights_of
from model_lab import GREEDY, GROUP_OF_THREE, GROUP_OF_TWO, prompt, row
from token_lab import SMALL, TinyBench

from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.gpu.runner import GpuRunner
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.step import (
    PENDING,
    DrawExtras,
    OverlappingRunner,
    RowInput,
    RowOutput,
    StepAbandoned,
    StepOutOfMemory,
)

BLOCK = 4
BLOCKS = 60
# all that sets families apart, at once
MIXED = replace(
    GROUP_OF_THREE,
    architecture="gemma2",
    sliding_window=6,
    sliding_layers=frozenset({0, 2}),
    sliding_rope_theta=100.0,
    unrotated_layers=frozenset({1}),
    attention_softcap=3.0,
    logit_softcap=4.0,
    qk_norm=True,
    post_norms=True,
    qkv_bias=True,
    out_bias=True,
    norm_offset=1.0,
    activation="gelu_tanh",
    embedding_scale=7.0,
)
SAMPLINGS = [
    GREEDY,
    SamplingParams(temperature=0.9),
    SamplingParams(temperature=1.3, top_k=20, logprobs=3),
    SamplingParams(temperature=0.8, top_p=0.7, min_p=0.02, logprobs=0, logprobs_mode="processed"),
    SamplingParams(temperature=0, logprobs=2, logprobs_mode="processed"),
    SamplingParams(
        temperature=1.1, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2, logprobs=1
    ),
    SamplingParams(temperature=1.0, logit_bias={3: 2.0, 11: -4.0}),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Both:
    """The same model on both, whose every step must come out alike."""

    def __init__(self, spec: ModelSpec = GROUP_OF_TWO, *, rows: int = 6, num_blocks: int = BLOCKS) -> None:
        spec = replace(spec, max_position=64)  # no longer, so that what is run to warm up is short
        weights = weights_of(spec)
        self.spec = spec
        self.device = FakeDevice()
        self.gpu = GpuRunner(
            spec,
            on_device(weights),
            block_size=BLOCK,
            step_tokens=64,
            max_num_seqs=rows,
            num_blocks=num_blocks,
            device=self.device,
            kernels=fake_kernels(self.device),
        )
        self.cpu = Runner(spec, weights, num_blocks=num_blocks, block_size=BLOCK)

    def run(self, rows: Sequence[RowInput]) -> list[RowOutput]:
        expected = self.cpu.run(rows)
        with self.device.never_waiting():
            step = self.gpu.submit(rows)
        same(self.gpu.collect(step), expected)
        return expected


def same(outputs: Sequence[RowOutput], expected: Sequence[RowOutput]) -> None:
    """The same tokens, with the same scores but for rounding."""
    assert [(o.request_id, o.epoch, o.token_id) for o in outputs] == [
        (o.request_id, o.epoch, o.token_id) for o in expected
    ]
    for output, other in zip(outputs, expected, strict=True):
        assert (output.score is None) == (other.score is None)
        told = [*output.targets, *([output.score] if output.score else [])]
        wanted = [*other.targets, *([other.score] if other.score else [])]
        for score, its in zip(told, wanted, strict=True):
            assert (score.token_id, score.rank, [t for t, _ in score.top]) == (
                its.token_id,
                its.rank,
                [t for t, _ in its.top],
            )
            assert [score.logprob, *(v for _, v in score.top)] == pytest.approx(
                [its.logprob, *(v for _, v in its.top)], abs=1e-4
            )


def overlapping(runner: OverlappingRunner) -> OverlappingRunner:
    return runner  # mypy checks that it is one


@pytest.mark.parametrize("spec", [GROUP_OF_THREE, MIXED], ids=["plain", "all at once"])
def test_ragged_steps_of_every_kind_of_row(spec: ModelSpec) -> None:
    """Chunks and single tokens in any mixture, every parameter, prompts whose own probabilities are asked for."""
    both, random = Both(spec), Random(5)
    history = [prompt(n, spec, seed=n) for n in (23, 9, 1, 17, 30, 6, 12)]
    tables = [list(range(8 * i, 8 * i + 8)) for i in range(len(history))]
    done = [0] * len(history)
    num_prompt = [len(ids) for ids in history]
    for _ in range(14):
        rows = []
        for i in random.sample(range(len(history)), random.choice([1, 3, 6])):
            if len(history[i]) >= 32:
                continue
            count = min(random.choice([1, 4, 9]), len(history[i]) - done[i])
            ids = history[i][done[i] : done[i] + count]
            ends = done[i] + count == len(history[i])
            params = SAMPLINGS[i]
            extras = DrawExtras(history=tuple(history[i]), num_prompt=num_prompt[i], banned=(5,) if i == 2 else ())
            targets = history[i][done[i] + 1 : done[i] + count + 1] if i in (2, 4) else ()
            rows.append(
                RowInput(
                    i,
                    0,
                    ids,
                    done[i],
                    tables[i],
                    params if ends else None,
                    71 * i,
                    extras,
                    targets,
                    len(targets) % 3,
                )
            )
            done[i] += count
        for output in both.run(rows):
            if output.token_id is not None:
                history[output.request_id].append(output.token_id)
    assert len(both.device.replayed) > 1, "some of these steps are of single tokens alone"
    assert sum(done) > 80


@pytest.mark.parametrize("spec", [GROUP_OF_THREE, MIXED], ids=["plain", "all at once"])
def test_steps_of_single_tokens_are_replayed_with_rows_that_are_nobodys(spec: ModelSpec) -> None:
    both = Both(spec, rows=20)
    assert both.device.captures == 6, "1, 2, 4, 8, 16, 24"
    prompts = [prompt(n, spec, seed=n) for n in (3, 9, 5, 12, 7)]
    tables = [[40 + i, 9 * i + 2, 9 * i, 9 * i + 5, 9 * i + 1] for i in range(5)]
    outputs = both.run([row(i, ids, 0, tables[i], SAMPLINGS[i % 2], i) for i, ids in enumerate(prompts)])
    assert both.device.replayed == []
    starts = [len(ids) for ids in prompts]
    for count in (5, 3, 5, 1, 2, 4, 5):
        rows = [row(o.request_id, [o.token_id or 0], starts[o.request_id], tables[o.request_id]) for o in outputs]
        rows = [replace(r, sampling=SAMPLINGS[r.request_id % 2], noise_key=r.request_id) for r in rows]
        told = both.run(rows[:count])
        for output in told:
            starts[output.request_id] += 1
        outputs = [*told, *outputs[count:]]
    sizes = [24, 16, 8, 4, 2, 1]  # in the order in which they are recorded
    assert [sizes[number] for number in both.device.replayed] == [8, 4, 8, 1, 2, 4, 8]
    # and what they computed is what a step of its own computes
    ids = [*prompts[0], 7]
    assert torch.allclose(
        both.gpu.logits([row(0, [7], 3, tables[0])])[0],
        both.cpu.logits([row(0, ids, 0, [50, 51, 52])])[0][-1:],
        atol=1e-4,
    )


def test_forms_that_an_output_is_held_to() -> None:
    both = Both()
    words = bytearray(40)
    words[3] = 0b1000_0001  # tokens 24 and 31
    extras = DrawExtras(allowed=lambda: bytes(words))
    rows = [
        replace(
            row(i, prompt(5, seed=i), 0, [2 * i, 2 * i + 1], SAMPLINGS[1], i), extras=extras if i % 2 else None
        )
        for i in range(4)
    ]
    drawn = [output.token_id for output in both.run(rows)]
    assert {drawn[1], drawn[3]} <= {24, 31}


def test_the_next_step_is_launched_before_the_last_one_is_read() -> None:
    """Its tokens are on the device only; rows come and go, and none is mistaken for another."""
    both = Both()
    prompts = [prompt(n, seed=n) for n in (4, 6, 9)]
    tables = [list(range(10 * i, 10 * i + 10)) for i in range(3)]
    starts = [len(ids) for ids in prompts]
    first = [row(i, ids, 0, tables[i], SAMPLINGS[1], i) for i, ids in enumerate(prompts)]
    with both.device.never_waiting():
        steps = [overlapping(both.gpu).submit(first)]
    expected = [both.cpu.run(first)]
    for number in range(6):
        ids = [2, 0] if number == 2 else [2, 1, 0] if number % 2 else [0, 1, 2]
        ids = [i for i in ids if any(o.request_id == i for o in expected[-1])]
        more = [row(9, prompt(3), 0, [50], SAMPLINGS[1], 9)] if number == 4 else []
        rows = [row(i, [PENDING], starts[i], tables[i], SAMPLINGS[1], i) for i in ids]
        rows = [*more, *rows]  # a run before single tokens, which are laid out the other way round
        with both.device.never_waiting():
            steps.append(both.gpu.submit(rows))
        same(both.gpu.collect(steps[-2]), expected[-1])
        known = {o.request_id: o.token_id for o in expected[-1]}
        rows = [replace(r, token_ids=[known[r.request_id]]) if r.token_ids == [PENDING] else r for r in rows]
        expected.append(both.cpu.run(rows))
        for i in ids:
            starts[i] += 1
    same(both.gpu.collect(steps[-1]), expected[-1])
    with pytest.raises(ValueError, match="request 1: it waits for a token that the step before has not drawn"):
        both.gpu.submit([row(1, [PENDING], starts[1], tables[1])])


def test_nothing_has_come_back_before_it_is_waited_for() -> None:
    both = Both()
    step = both.gpu.submit([row(0, prompt(5), 0, [0, 1])])
    assert step.drawn is not None
    assert step.drawn.tokens.tolist() == [0x7F7F_7F7F_7F7F_7F7F], "nobody has written there yet"
    with pytest.raises(AssertionError, match="waits for the device"), both.device.never_waiting():
        both.gpu.logits([row(0, prompt(5), 0, [0, 1])])


def test_a_step_is_given_up_between_two_layers_close_to_where_the_device_is() -> None:
    deep = replace(GROUP_OF_THREE, num_layers=9)
    both = Both(deep)
    rows = [row(0, prompt(30, deep), 0, list(range(8)))]
    waits: list[int] = []
    began = both.device.waits

    def on_the_eighth() -> bool:
        waits.append(both.device.waits - began)
        return len(waits) == 8

    with pytest.raises(StepAbandoned):
        both.gpu.submit(rows, on_the_eighth)
    assert waits == [0, 0, 0, 0, 1, 2, 3, 4], "four layers are under way, no more"
    outputs = both.run(rows)
    following = [row(0, [outputs[0].token_id or 0], 30, list(range(8)))]
    replayed = len(both.device.replayed)
    with pytest.raises(StepAbandoned):
        both.gpu.run(following, lambda: True)
    assert len(both.device.replayed) == replayed
    both.run(following)


def every_launch(both: Both, rows: Sequence[RowInput]) -> int:
    before = both.device.launches
    both.gpu.run(rows)
    return both.device.launches - before


@pytest.mark.parametrize("share", [0.05, 0.5, 0.999])
def test_where_memory_runs_out_nothing_of_the_step_counts(share: float) -> None:
    both = Both()
    first = [row(i, prompt(n, seed=n), 0, [10 * i, 10 * i + 1, 10 * i + 2], GREEDY) for i, n in enumerate((5, 7))]
    outputs = both.run(first)
    rows = [
        row(o.request_id, [PENDING], n, first[o.request_id].block_table)
        for o, n in zip(outputs, (5, 7), strict=True)
    ]
    rows.append(row(8, prompt(6, seed=1), 0, [40, 41], SAMPLINGS[2]))
    launches = every_launch(Both(), [*first[:1], rows[2]])
    both.device.fails_at = both.device.launches + max(1, int(share * launches))
    released = both.device.released
    with pytest.raises(
        StepOutOfMemory, match=r"a step of 8 tokens: CUDA out of memory\. Tried to allocate 2\.00 GiB\.$"
    ) as failure:
        both.gpu.submit(rows)
    assert failure.value.blocks == BLOCKS // 20
    assert both.device.released == released + 1
    assert failure.value.__cause__ is failure.value.__context__ is None, "frames of the step would hold its memory"

    failure.value.give_up([3, 40, 59])
    rows[2] = replace(rows[2], block_table=[42, 41])
    with both.device.never_waiting():
        step = both.gpu.submit(
            rows
        )  # what the step before has drawn is still there, and so are its keys and values
    known = [replace(r, token_ids=[o.token_id]) for r, o in zip(rows, outputs, strict=False)]
    same(both.gpu.collect(step), both.cpu.run([*known, rows[2]]))
    with pytest.raises(ValueError, match="given up"):
        both.gpu.run([row(0, [1], 7, [10, 3])])
    assert {layer.shape[0] for layer in both.gpu._pool.layers} == {BLOCKS - 3}  # type: ignore[union-attr]


def test_what_is_given_up_is_freed_even_where_there_is_no_room_for_a_copy() -> None:
    both = Both()
    rows = [row(0, prompt(10), 0, (30, 20, 10))]
    (output,) = both.run(rows)
    both.device.fails_at = both.device.launches + 2  # where the first smaller layer is to be made
    both.gpu.give_up(range(11, 20))
    assert both.device.fails_at is None
    released = both.device.released
    both.gpu.give_up([0, 1, 59])
    # each layer before the next is made smaller, which would be cut out of what this one left
    assert both.device.released == released + 1 + both.spec.num_layers
    both.run([row(0, [output.token_id or 0], 10, (30, 20, 10))])
    with pytest.raises(ValueError, match="one block of the pool must stay"):
        both.gpu.give_up(range(BLOCKS))


def test_too_little_memory_to_record_steps_is_no_reason_to_end(caplog: pytest.LogCaptureFixture) -> None:
    both = Both()
    rows = [row(0, prompt(10), 0, (30, 20, 10))]
    (output,) = both.run(rows)
    gives_up = both.gpu._pool.give_up  # type: ignore[union-attr]

    def then_fails(blocks: Sequence[int]) -> None:
        gives_up(blocks)
        both.device.fails_at = both.device.launches + 30

    both.gpu._pool.give_up = then_fails  # type: ignore[union-attr, method-assign, assignment]
    both.gpu.give_up([0])
    assert "launched kernel by kernel" in caplog.text
    replayed = len(both.device.replayed)
    both.run([row(0, [output.token_id or 0], 10, (30, 20, 10))])
    assert len(both.device.replayed) == replayed


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(9, [1] * 65, 0, range(20)), "65 tokens, and step_tokens is 64"),
        (row(9, [1, 2], 3, [1]), "do not fit the 1 blocks"),
        (row(9, [-2], 0, [1]), "outside the vocabulary"),
        (row(9, [3, PENDING], 0, [1]), "waits for a token"),
        (row(9, [1], 0, [BLOCKS]), "outside 0..59"),
    ],
)
def test_a_bad_row_raises_before_anything_is_launched(bad: RowInput, message: str) -> None:
    both = Both()
    launches = both.device.launches
    with pytest.raises(ValueError, match=message):
        both.gpu.submit([bad])
    assert both.device.launches == launches


def test_it_closes_once_and_lets_go_of_all() -> None:
    both = Both()
    both.run([row(0, prompt(5), 0, [0, 1])])
    assert both.gpu.run([]) == []
    both.gpu.close()
    both.gpu.close()
    for use in (lambda: both.gpu.run([row(0, [1], 0, [0])]), lambda: both.gpu.give_up([0])):
        with pytest.raises(RuntimeError, match="closed"):
            use()


async def test_an_engine_answers_alike_from_either() -> None:
    """With a shared beginning in the cache, and too few blocks for all at once."""
    texts = ["a common beginning, and then one", "a common beginning, and then another", "short", "x" * 30]
    params = [
        SamplingParams(max_tokens=9, temperature=0, ignore_eos=True),
        SamplingParams(max_tokens=12, seed=3, top_p=0.9, logprobs=1, ignore_eos=True),
        SamplingParams(max_tokens=14, seed=8, presence_penalty=0.5, min_tokens=3),
        SamplingParams(max_tokens=5, temperature=0, prompt_logprobs=1),
    ]
    told = []
    for where in ("cpu", "lab"):
        bench = TinyBench(SMALL, blocks=24)
        with running_on(where):
            await bench.engine.start()
        async with bench.engine as engine:
            first = await engine.complete(texts[0], params[0])
            rest = await asyncio.gather(
                *(engine.complete(text, own, traffic="bulk") for text, own in zip(texts, params, strict=True))
            )
            assert engine.stats()["finished"] == 5
        assert hasattr(bench.runner, "submit") == (where == "lab")
        told.append([first, *rest])
    for cpu, gpu in zip(*told, strict=True):
        assert (gpu.text, gpu.token_ids, gpu.finish_reason) == (cpu.text, cpu.token_ids, cpu.finish_reason)
        assert [one is None for one in (gpu.logprobs, gpu.prompt_logprobs)] == [
            one is None for one in (cpu.logprobs, cpu.prompt_logprobs)
        ]
