"""Rows of a step divided among threads: who gets what, what comes back, and when the threads end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_lab import GROUP_OF_TWO, poisoned, prompt, random_weights, row

from orchestra.localengine.execution.lanes import Lanes
from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.step import StepAbandoned


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def lane_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("orchestra-lane")]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 4))
def test_every_row_is_in_one_share_and_the_shares_are_alike(tokens: list[int], count: int) -> None:
    shares = Lanes(count).divide(tokens)
    assert sorted(place for share in shares for place in share) == list(range(len(tokens)))
    assert all(share == sorted(share) for share in shares)
    if len(shares) > 1:
        loads = [sum(tokens[place] for place in share) for share in shares]
        assert len(shares) == count
        assert min(loads) >= 64
        assert min(loads) >= 0.8 * max(loads)


def test_small_steps_and_lopsided_ones_stay_whole() -> None:
    lanes = Lanes(2)
    assert lanes.divide([64, 64]) == [[0], [1]]
    assert lanes.divide([64, 63]) == [[0, 1]]
    assert lanes.divide([1] * 40) == [list(range(40))]
    assert lanes.divide([500, 70]) == [[0, 1]]
    assert Lanes(1).divide([100] * 10) == [list(range(10))]


def test_shares_are_computed_side_by_side_in_threads_of_one_torch_thread() -> None:
    lanes, before = Lanes(2), torch.get_num_threads()
    meeting = threading.Barrier(2, timeout=30)

    def meet(share: list[int]) -> tuple[list[int], int, str]:
        meeting.wait()  # each waits for the other: one thread would never come back
        return share, torch.get_num_threads(), threading.current_thread().name

    results = lanes.run(meet, [[0, 2], [1]])
    assert [result[:2] for result in results] == [([0, 2], 1), ([1], 1)]
    assert len({result[2] for result in results}) == 2
    assert torch.get_num_threads() == before
    lanes.close()


def test_an_error_is_told_when_all_have_ended_and_the_lanes_go_on() -> None:
    lanes = Lanes(2)
    ended = []

    def fail(share: list[int]) -> None:
        if share == [0]:
            raise StepAbandoned
        ended.append(share)

    with pytest.raises(StepAbandoned):
        lanes.run(fail, [[0], [1]])
    assert ended == [[1]]
    assert lanes.run(len, [[0], [1, 2]]) == [1, 2]
    lanes.close()


@pytest.mark.parametrize("close", [True, False], ids=["closed", "forgotten"])
def test_the_threads_end(close: bool) -> None:
    lanes = Lanes(2)
    others = set(lane_threads())
    lanes.run(len, [[0], [1]])
    mine = set(lane_threads()) - others
    assert len(mine) == 2
    if close:
        lanes.close()
        lanes.close()
    del lanes
    gc.collect()
    for thread in mine:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.usefixtures("two_threads")
def test_a_divided_step_is_the_step() -> None:
    weights = random_weights(GROUP_OF_TWO)
    rows = [
        row(n, prompt(length, GROUP_OF_TWO, n), 0, range(20 * n, 20 * n + 20))
        for n, length in enumerate((70, 1, 40, 75, 30, 1))
    ]
    runner = poisoned(Runner(GROUP_OF_TWO, dict(weights), num_blocks=130, block_size=4))
    before = set(lane_threads())
    together = runner.logits(rows)
    assert len(set(lane_threads()) - before) == 2  # the step was divided
    for own, logits in zip(rows, together, strict=True):
        alone = poisoned(Runner(GROUP_OF_TWO, dict(weights), num_blocks=130, block_size=4))
        (expected,) = alone.logits([own])
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(StepAbandoned):
        runner.run(rows, abandon=lambda: True)
    runner.close()
