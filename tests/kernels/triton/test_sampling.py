"""Draws, filters and what stands around them, interpreted, against the reference. Blocks are of 64 tokens here, so
that these vocabularies are several chunks a row, and the last of them not whole.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from orchestra.kernels.sampling import reference, torch_cpu, triton_

NEVER = float("-inf")
VOCAB = 130


def random_logits(rows: int, vocab: int = VOCAB, *, seed: int = 0, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def gapped(rows: Tensor) -> Tensor:
    """The same rows with gaps of NaN between them."""
    memory = torch.full((rows.shape[0], rows.shape[1] + 16), float("nan"), dtype=rows.dtype)
    memory[:, : rows.shape[1]] = rows
    return memory[:, : rows.shape[1]]


def test_noise_is_that_of_the_reference() -> None:
    seeds = torch.tensor([0, -1, 2**63 - 1, -(2**63)])
    positions = torch.tensor([0, 1, 8191, 2**40])
    noise = triton_.exponential_noise(seeds, positions, 70)
    assert (noise > 0).all()
    # what arrives late has few digits as float32, here and on a CPU alike
    torch.testing.assert_close(noise, reference.exponential_noise(seeds, positions, 70), atol=0, rtol=1e-4)
    torch.testing.assert_close(noise, torch_cpu.exponential_noise(seeds, positions, 70), atol=0, rtol=4e-7)
    assert triton_.exponential_noise(seeds[:0], positions[:0], 70).shape == (0, 70)


def test_noise_keeps_its_digits_where_it_is_small() -> None:
    """Early arrivals decide: over many tokens some are of a thousandth, and as exact as the others."""
    noise = triton_.exponential_noise(torch.tensor([3]), torch.tensor([0]), 3000)
    exact = torch_cpu.exponential_noise(torch.tensor([3]), torch.tensor([0]), 3000)
    assert exact.min() < 1e-3
    torch.testing.assert_close(noise, exact, atol=0, rtol=4e-7)


def test_greedy_takes_the_largest_and_the_first_among_equals() -> None:
    logits = random_logits(4)
    logits[0, [63, 64, 129]] = 20.0  # equals in three chunks
    logits[1] = 1.5  # all of them
    logits[2] = NEVER
    logits[2, 129] = -1000.0
    assert triton_.greedy(gapped(logits)).tolist() == [63, 0, 129, reference.greedy(logits)[3]]
    assert triton_.greedy(logits.half()).tolist() == [63, 0, 129, reference.greedy(logits.half())[3]]
    assert triton_.greedy(logits[:0]).tolist() == []


def test_a_row_of_nothing_possible_ends() -> None:
    logits = torch.full((1, 70), NEVER)
    one, none = torch.ones(1), torch.zeros(1, dtype=torch.int64)
    assert triton_.greedy(logits).tolist() == [0]
    for top_p in (1.0, 0.5):
        assert triton_.sample(logits, one, none + 3, one * top_p, none, none, one * 0.1).tolist() == [0]


# temperature, top_k, top_p, min_p: each way off, alone, together, and beyond what there is
WAYS = [
    (1.0, 0, 1.0, 0.0),
    (1e-30, 5000, 1.0, 0.0),
    (9.0, 40, 1.0, 0.0),
    (3.0, 0, 0.9, 0.0),
    (9.0, 0, 0.999, 0.0),
    (4.0, 0, 1.0, 0.05),
    (6.0, 100, 0.95, 0.01),
    (1.0, 3, 0.5, 1.0),
    (50.0, 0, 1e-6, 0.0),
]


def parameters() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    temperature, top_k, top_p, min_p = zip(*WAYS, strict=True)
    return torch.tensor(temperature), torch.tensor(top_k), torch.tensor(top_p), torch.tensor(min_p)


def test_draws_are_those_of_the_reference_and_of_each_row_alone() -> None:
    temperature, top_k, top_p, min_p = parameters()
    rows = len(WAYS)
    logits = random_logits(rows, seed=1)
    logits[0, 30:100] = NEVER
    logits[4] = 0.25
    logits[3, ::2] = logits[3, 1::2].max()
    seeds, positions = torch.arange(rows) * 10**15 - 5, torch.arange(rows) + 100
    expected = reference.sample(logits, temperature, top_k, top_p, seeds, positions, min_p).tolist()
    arguments = (gapped(logits), temperature, top_k, top_p, seeds, positions, min_p)
    assert triton_.sample(*arguments).tolist() == expected
    # each in other company: the unfiltered ones without the filters' kernels
    for chosen in ([0, 1], [6, 2]):
        assert triton_.sample(*(a[chosen] for a in arguments)).tolist() == [expected[i] for i in chosen]


def test_temperature_0_is_greedy_among_others() -> None:
    logits = random_logits(4, seed=2)
    logits[0, [70, 110]] = 15.0
    temperature = torch.tensor([0.0, 1.0, 0.0, 4.0])
    top_k, top_p = torch.tensor([5, 5, 0, 0]), torch.tensor([1.0, 1.0, 0.5, 1.0])
    seeds, positions = torch.arange(4), torch.arange(4)
    drawn = triton_.sample(logits, temperature, top_k, top_p, seeds, positions).tolist()
    random = [1, 3]
    expected = reference.sample(*(a[random] for a in (logits, temperature, top_k, top_p, seeds, positions)))
    assert drawn == [70, expected[0], reference.greedy(logits)[2], expected[1]]


def test_a_chunk_of_which_nothing_is_kept_has_no_winner() -> None:
    logits, one = random_logits(1), torch.ones(5)
    top_k, rows = torch.ones(5, dtype=torch.int64), torch.arange(5)
    drawn = triton_.sample(logits.expand(5, -1), one * 50, top_k, one, rows, rows)
    assert drawn.tolist() == [int(logits.argmax())] * 5


def test_draws_follow_the_softmax() -> None:
    """Over positions, of one row that all share; the seed is fixed, and the bound the 99.99 % quantile."""
    number, logits = 80, torch.tensor([1.0, 0.0, NEVER, 0.5])
    off, sevens = torch.zeros(number, dtype=torch.int64), torch.full((number,), 7)
    heat, ones = torch.full((number,), 0.8), torch.ones(number)
    drawn = triton_.sample(logits.expand(number, -1), heat, off, ones, sevens, torch.arange(number))
    counts = torch.bincount(drawn, minlength=4).double()
    expected = (logits.double() / 0.8).softmax(-1) * number
    assert counts[2] == 0
    chi_square = ((counts - expected) ** 2 / expected)[expected > 0].sum().item()
    assert chi_square < 18.42  # of 2 degrees of freedom


@pytest.mark.parametrize("kind", ["spread", "rounded", "flat", "peaked", "impossible"])
def test_masks_are_those_of_the_reference(kind: str) -> None:
    _, top_k, top_p, min_p = parameters()
    rows = len(WAYS)
    scaled = random_logits(rows, seed=3, spread=2.0)
    if kind == "rounded":
        scaled = scaled.round()  # many equals, and zeros of both signs
        assert (scaled.signbit() & (scaled == 0)).any()
    elif kind == "flat":
        scaled = scaled / 1000
    elif kind == "peaked":
        scaled = scaled * 20 + 1000
    elif kind == "impossible":
        scaled[:, torch.arange(VOCAB) % 3 > 0] = NEVER
    expected = reference.keep_mask(scaled, top_k, top_p, min_p)
    assert torch.equal(triton_.keep_mask(gapped(scaled), top_k, top_p, min_p), expected)
    assert expected.any(dim=-1).all()


def test_masks_of_a_larger_vocabulary_without_min_p() -> None:
    """Here a group has four tokens, and one k of top-k is more than there are groups."""
    scaled = random_logits(3, 600, seed=4)
    scaled[0, 10:60] = 9.0  # equals in few groups, among the largest
    top_k, top_p = torch.tensor([70, 0, 590]), torch.tensor([1.0, 0.95, 1.0])
    expected = reference.keep_mask(scaled, top_k, top_p)
    assert torch.equal(triton_.keep_mask(scaled, top_k, top_p), expected)


def test_neighbouring_floats_differ_and_both_zeros_do_not() -> None:
    one = torch.tensor(1.0).view(torch.int32)
    neighbours = (one + torch.randperm(70)).to(torch.int32).view(torch.float32)
    zeros = -torch.arange(70.0)
    zeros[[3, 66]] = torch.tensor([0.0, -0.0])
    scaled, top_p = torch.stack([neighbours, -neighbours, zeros]), torch.ones(3)
    top_k = torch.tensor([20, 33, 2])
    expected = reference.keep_mask(scaled, top_k, top_p)
    assert expected.sum(dim=-1).tolist() == [20, 33, 3]
    assert torch.equal(triton_.keep_mask(scaled, top_k, top_p), expected)


def test_log_probabilities_are_those_of_the_reference() -> None:
    temperature, top_k, top_p, min_p = (values[[0, 2, 3, 6]] for values in parameters())
    logits = random_logits(4, seed=5)
    told = triton_.log_probabilities(logits, temperature, top_k, top_p, min_p)
    torch.testing.assert_close(told, reference.log_probabilities(logits, temperature, top_k, top_p, min_p))


@pytest.mark.parametrize("vocab", [5, 70, 130])
def test_only_what_is_allowed_is_left(vocab: int) -> None:
    words = torch.randint(-(2**31), 2**31, (3, 3), generator=torch.Generator().manual_seed(vocab)).to(torch.int32)
    logits = random_logits(3, vocab)
    expected = reference.forbid(logits, words)
    assert torch.equal(triton_.forbid(gapped(logits), words), expected)
    assert torch.equal(triton_.forbid(logits.half(), words), reference.forbid(logits.half(), words))
    assert triton_.forbid(logits[:0], words[:0]).shape == (0, vocab)


@pytest.mark.parametrize("top", [0, 1, 5, 60])
def test_ranks_are_those_of_the_reference(top: int) -> None:
    logprobs = random_logits(4, 40, seed=top).round()  # many equals, and zeros of both signs
    logprobs[3, 7:] = NEVER
    chosen = torch.tensor([0, 39, 20, 3])
    for rows in (slice(0, 4), slice(0, 0)):
        ours = triton_.rank_tokens(logprobs[rows], chosen[rows], top)
        for got, wanted in zip(ours, reference.rank_tokens(logprobs[rows], chosen[rows], top), strict=True):
            assert torch.equal(got, wanted)
            assert got.dtype == wanted.dtype


def test_rows_that_are_not_rows_are_refused() -> None:
    columns, one, none = torch.randn(8, 4).t(), torch.ones(4), torch.zeros(4, dtype=torch.int64)
    words = torch.zeros(4, 1, dtype=torch.int32)
    for call in (
        lambda: triton_.greedy(columns),
        lambda: triton_.sample(columns, one, none, one, none, none),
        lambda: triton_.keep_mask(columns, none, one),
        lambda: triton_.forbid(columns, words),
    ):
        with pytest.raises(ValueError, match="side by side"):
            call()
