from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from orchestra.kernels.sampling import reference, torch_cpu

MODULES = [reference, torch_cpu]


def draws(
    module: ModuleType,
    logits: Tensor,
    positions: Tensor,
    *,
    seed: int = 7,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Tensor:
    """One draw at each position from one row of logits."""
    rows = len(positions)
    tokens: Tensor = module.sample(
        logits.expand(rows, -1),
        torch.full((rows,), temperature),
        torch.full((rows,), top_k),
        torch.full((rows,), top_p),
        torch.full((rows,), seed),
        positions,
    )
    return tokens


@pytest.mark.parametrize("module", MODULES)
def test_greedy_takes_the_largest_and_the_first_among_equals(module: ModuleType) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0], [-5.0, -6.0, -7.0, -8.0]])
    assert module.greedy(logits).tolist() == [1, 0]
    assert module.greedy(torch.empty(0, 4)).tolist() == []


def test_noise_agrees_with_the_reference() -> None:
    seeds = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63)])
    positions = torch.tensor([0, 1, 5, 8191, 2**40])
    expected = reference.exponential_noise(seeds, positions, 200)
    torch.testing.assert_close(torch_cpu.exponential_noise(seeds, positions, 200), expected, atol=0, rtol=1e-5)
    assert (expected > 0).all()


def test_noise_is_exponential_and_uncorrelated() -> None:
    noise = torch_cpu.exponential_noise(torch.arange(64), torch.zeros(64, dtype=torch.int64), 4096).double()
    assert abs(noise.mean().item() - 1) < 0.01  # 262,144 values: the standard error is 0.002
    assert abs(noise.var().item() - 1) < 0.03
    for quantile in (0.001, 0.1, 0.5, 0.9, 0.999):
        expected = -torch.log1p(torch.tensor(-quantile, dtype=torch.float64))
        share = (noise < expected).double().mean().item()
        assert abs(share - quantile) < 5 * (quantile * (1 - quantile) / noise.numel()) ** 0.5
    between_seeds = torch.corrcoef(noise)  # neighbouring seeds
    assert between_seeds.fill_diagonal_(0).abs().max() < 5.5 / 4096**0.5
    between_tokens = torch.corrcoef(noise[:, :200].T)  # neighbouring tokens
    assert between_tokens.fill_diagonal_(0).abs().max() < 6 / 64**0.5
    other_positions = torch_cpu.exponential_noise(torch.arange(64), torch.ones(64, dtype=torch.int64), 4096)
    assert torch.corrcoef(torch.stack([noise.flatten(), other_positions.double().flatten()]))[0, 1].abs() < 0.01


# 99.99 % quantiles of chi-square, by degrees of freedom
CHI_SQUARE = {5: 25.74, 2: 18.42, 11: 37.37}


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "kept"),
    [(1.0, 0, 1.0, 12), (0.5, 6, 1.0, 6), (2.0, 0, 1.0, 12), (1.0, 3, 1.0, 3)],
)
def test_draws_follow_the_softmax(temperature: float, top_k: int, top_p: float, kept: int) -> None:
    logits = torch.linspace(2.0, -1.0, 12)[torch.randperm(12, generator=torch.Generator().manual_seed(1))]
    scaled = logits / temperature
    allowed = scaled >= scaled.sort(descending=True).values[kept - 1]
    probability = scaled.masked_fill(~allowed, float("-inf")).double().softmax(-1)
    number = 20_000
    tokens = draws(torch_cpu, logits, torch.arange(number), temperature=temperature, top_k=top_k, top_p=top_p)
    counts = torch.bincount(tokens, minlength=12).double()
    assert counts[~allowed].sum() == 0
    expected = probability[allowed] * number
    chi_square = ((counts[allowed] - expected) ** 2 / expected).sum().item()
    assert chi_square < CHI_SQUARE[kept - 1]


def test_draws_over_seeds_follow_the_softmax_too() -> None:
    logits, number = torch.tensor([1.0, 0.0, -1.0]), 20_000
    tokens = torch_cpu.sample(
        logits.expand(number, -1),
        torch.ones(number),
        torch.zeros(number, dtype=torch.int64),
        torch.ones(number),
        torch.arange(number),
        torch.full((number,), 37),
    )
    expected = logits.double().softmax(-1) * number
    chi_square = ((torch.bincount(tokens, minlength=3) - expected) ** 2 / expected).sum().item()
    assert chi_square < CHI_SQUARE[2]


@given(
    seed=st.integers(0, 2**32),
    vocab=st.sampled_from([1, 2, 50, 600, 1500]),
    spread=st.sampled_from([0.01, 1.0, 10.0]),
    filters=st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 40, 599, 5000]), st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0])),
        min_size=1,
        max_size=4,
    ),
    rounded=st.booleans(),
)
def test_masks_agree_with_the_reference(
    seed: int, vocab: int, spread: float, filters: list[tuple[int, float]], rounded: bool
) -> None:
    scaled = torch.randn(len(filters), vocab, generator=torch.Generator().manual_seed(seed)) * spread
    if rounded:  # many equal values
        scaled = scaled.round()
    top_k, top_p = torch.tensor([k for k, _ in filters]), torch.tensor([p for _, p in filters])
    keep = torch_cpu.keep_mask(scaled, top_k, top_p)
    assert torch.equal(keep, reference.keep_mask(scaled, top_k, top_p))
    assert keep.any(dim=-1).all()


def test_masks_by_hand() -> None:
    scaled = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(6, -1)
    top_k = torch.tensor([0, 2, 0, 0, 3, 1])
    top_p = torch.tensor([1.0, 1.0, 0.6, 0.4, 0.52, 0.9])
    expected = [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    for module in MODULES:
        assert module.keep_mask(scaled, top_k, top_p).int().tolist() == expected


@pytest.mark.usefixtures("two_threads")
def test_a_draw_is_the_same_alone_and_among_any_neighbours() -> None:
    generator = torch.Generator().manual_seed(3)
    rows, vocab = 12, 3000
    logits = torch.randn(rows, vocab, generator=generator) * 3
    temperature = torch.rand(rows, generator=generator) + 0.2
    top_k = torch.tensor([0, 40, 1, 0, 900, 5] * 2)
    top_p = torch.tensor([1.0, 0.9, 1.0, 0.5, 0.95, 1.0, 0.999, 1.0, 0.3, 1.0, 0.99, 0.7])
    seeds, positions = torch.arange(rows) * 10**15 - 5, torch.arange(rows) + 100

    def sample(chosen: list[int]) -> list[int]:
        arguments = (logits, temperature, top_k, top_p, seeds, positions)
        return [int(t) for t in torch_cpu.sample(*(a[chosen] for a in arguments))]

    together = sample(list(range(rows)))
    assert together == [sample([i])[0] for i in range(rows)]
    assert sample([7, 3, 3, 0]) == [together[i] for i in (7, 3, 3, 0)]
    assert together == reference.sample(logits, temperature, top_k, top_p, seeds, positions).tolist()


def test_positions_and_seeds_change_the_draw() -> None:
    flat = torch.zeros(1000)
    assert len(set(draws(torch_cpu, flat, torch.arange(50)).tolist())) > 40
    assert (
        draws(torch_cpu, flat, torch.arange(50)).tolist()
        != draws(torch_cpu, flat, torch.arange(50), seed=8).tolist()
    )


def test_impossible_tokens_are_never_drawn_and_tiny_temperatures_are_greedy() -> None:
    logits = torch.full((50,), float("-inf"))
    logits[17], logits[30] = 1.0, 1.5
    assert set(draws(torch_cpu, logits, torch.arange(200)).tolist()) == {17, 30}
    assert set(draws(torch_cpu, logits, torch.arange(200), top_p=0.999).tolist()) == {17, 30}
    assert set(draws(torch_cpu, logits, torch.arange(200), temperature=1e-30).tolist()) == {30}
