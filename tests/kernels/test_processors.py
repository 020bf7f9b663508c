"""What changes logits before a draw, and what is told of them after it: the CPU's against the reference."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from orchestra.kernels.sampling import reference, torch_cpu

MODULES = [reference, torch_cpu]
NEVER = float("-inf")


def random_logits(seed: int, rows: int, vocab: int, *, rounded: bool = False) -> Tensor:
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    return logits.round() if rounded else logits


@pytest.mark.parametrize("module", MODULES)
def test_penalties_by_hand(module: ModuleType) -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 4.0, 0.0]])
    said = torch.tensor([[0, 1, 0, 2, 0, -1]])  # 0, 1 in the prompt; 0, 2, 0 in the output
    is_output = torch.tensor([[False, False, True, True, True, False]])
    halves = module.penalize(
        logits, said, is_output, torch.tensor([2.0]), torch.tensor([0.5]), torch.tensor([0.25])
    )
    # 0: 2 / 2 - 2 * 0.5 - 0.25; 1: -2 * 2, of the prompt alone; 2: 1 / 2 - 0.5 - 0.25
    assert halves.tolist() == [[-0.25, -4.0, -0.25, 4.0, 0.0]]
    off = module.penalize(logits, said, is_output, torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([0.0]))
    assert torch.equal(off, logits)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    vocab=st.sampled_from([1, 5, 300]),
    histories=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=5),
    rates=st.tuples(st.floats(0.1, 3), st.floats(-2, 2), st.floats(-2, 2)),
)
def test_penalties_agree_with_the_reference(
    seed: int, vocab: int, histories: list[tuple[int, int]], rates: tuple[float, float, float]
) -> None:
    logits = random_logits(seed, len(histories), vocab)
    length = max(prompt + output for prompt, output in histories)
    said = torch.randint(0, vocab, (len(histories), length), generator=torch.Generator().manual_seed(seed + 1))
    place = torch.arange(length)
    starts, ends = (
        torch.tensor(column)[:, None] for column in zip(*[(p, p + o) for p, o in histories], strict=True)
    )
    said = torch.where(place < ends, said, -1)
    is_output = (place >= starts) & (place < ends)
    amounts = [torch.full((len(histories),), rate) for rate in rates]
    torch.testing.assert_close(
        torch_cpu.penalize(logits, said, is_output, *amounts),
        reference.penalize(logits, said, is_output, *amounts),
    )


@pytest.mark.parametrize("module", MODULES)
def test_biases_add_up_and_a_ban_stays(module: ModuleType) -> None:
    logits = torch.zeros(2, 4)
    rows, tokens = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 3, 3])
    biased = module.add_bias(logits, rows, tokens, torch.tensor([1.0, 2.0, 100.0, NEVER]))
    assert biased.tolist() == [[0.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, NEVER]]
    assert logits.abs().max() == 0


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("vocab", [5, 32, 33, 70])
def test_only_what_is_allowed_is_left(module: ModuleType, vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    words = torch.randint(-(2**31), 2**31, (3, 2), generator=generator).to(torch.int32)
    logits = random_logits(1, 3, vocab)
    left = module.forbid(logits, words)
    for row in range(3):
        for token in range(vocab):
            allowed = token < 64 and int(words[row, token // 32]) >> (token % 32) & 1
            assert left[row, token] == (logits[row, token] if allowed else NEVER)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    vocab=st.sampled_from([1, 2, 50, 600]),
    least=st.lists(st.sampled_from([0.0, 1e-6, 0.05, 0.5, 1.0]), min_size=1, max_size=4),
    top_k=st.sampled_from([0, 3, 5000]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
)
def test_min_p_agrees_with_the_reference(
    seed: int, vocab: int, least: list[float], top_k: int, top_p: float
) -> None:
    scaled = random_logits(seed, len(least), vocab)
    ks, ps = torch.full((len(least),), top_k), torch.full((len(least),), top_p)
    kept = torch_cpu.keep_mask(scaled, ks, ps, torch.tensor(least))
    assert torch.equal(kept, reference.keep_mask(scaled, ks, ps, torch.tensor(least)))
    assert kept.any(dim=-1).all()


def test_min_p_by_hand() -> None:
    scaled = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(3, -1)
    least, ks, ps = torch.tensor([0.25, 1.0, 0.0]), torch.tensor([0, 0, 0]), torch.tensor([1.0, 1.0, 1.0])
    for module in MODULES:
        kept = module.keep_mask(scaled, ks, ps, least)
        assert kept.int().tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]


def test_min_p_narrows_the_draws() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(400, -1)
    ones = torch.ones(400)
    drawn = torch_cpu.sample(
        logits, ones, torch.zeros(400, dtype=torch.int64), ones, torch.arange(400), torch.arange(400), ones * 0.5
    )
    assert set(drawn.tolist()) == {0, 1}


def test_log_probabilities_sum_to_one_over_what_is_kept() -> None:
    logits = random_logits(3, 3, 50)
    temperature, ks = torch.tensor([1.0, 0.5, 2.0]), torch.tensor([0, 4, 0])
    ps, least = torch.tensor([1.0, 1.0, 0.6]), torch.tensor([0.0, 0.0, 0.1])
    told = torch_cpu.log_probabilities(logits, temperature, ks, ps, least)
    torch.testing.assert_close(told, reference.log_probabilities(logits, temperature, ks, ps, least))
    torch.testing.assert_close(told.exp().sum(dim=-1), torch.ones(3))
    torch.testing.assert_close(told[0], logits[0].log_softmax(-1))
    assert torch.isfinite(told[1]).sum() == 4


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(0, 4),
    vocab=st.sampled_from([1, 3, 40]),
    top=st.sampled_from([0, 1, 5, 60]),
    rounded=st.booleans(),
)
def test_ranks_agree_with_the_reference(seed: int, rows: int, vocab: int, top: int, rounded: bool) -> None:
    logprobs = random_logits(seed, rows, vocab, rounded=rounded)
    chosen = torch.randint(0, vocab, (rows,), generator=torch.Generator().manual_seed(seed))
    for ours, wanted in zip(
        torch_cpu.rank_tokens(logprobs, chosen, top), reference.rank_tokens(logprobs, chosen, top), strict=True
    ):
        assert torch.equal(ours, wanted)
        assert ours.dtype == wanted.dtype
