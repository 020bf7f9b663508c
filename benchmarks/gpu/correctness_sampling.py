"""Checks of sampling: draws are those of a CPU for the same seeds, and what surrounds them is what it ought to be.

Draws and filters decide by comparing floats. Where two lie within the last bit of one another a GPU's exp2 may
decide otherwise, so that one draw of a hundred may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from gpu.errors import compared
from gpu.figures import Figure, Target
from gpu.lab import Lab

__all__ = ["sampling_checks"]

Check = tuple[str, Callable[[], Iterator[Figure]]]
_EQUAL = Target(least=0.98)
_EXACTLY = Target(most=0.0)
_FLOAT32 = Target(most=1e-5)
# temperature, top_k, top_p, min_p
_WAYS = [(1.0, 0, 1.0, 0.0), (0.7, 40, 1.0, 0.0), (1.5, 0, 0.9, 0.0), (2.0, 0, 1.0, 0.05), (1.2, 100, 0.95, 0.01)]


def sampling_checks(lab: Lab) -> Iterator[Check]:
    """Yield the checks of a small and a large vocabulary, and what measures each."""
    for vocab in (70,) if lab.rehearsal else (49152, 128256):
        for what, check in (
            ("greedy", _greedy),
            ("noise", _noise),
            ("draws without filters", _plain_draws),
            ("draws with filters", _filtered_draws),
            ("what filters keep", _kept),
            ("what surrounds a draw", _around),
        ):
            what = f"{what}, vocabulary of {vocab:,}"
            yield what, partial(check, lab, what, vocab)


def _greedy(lab: Lab, what: str, vocab: int) -> Iterator[Figure]:
    from orchestra.kernels.sampling import torch_cpu, triton_

    logits = _logits(lab, vocab)
    logits[0, [3, vocab // 2, vocab - 1]] = 50.0  # equals far apart: the first of them
    exact = [torch_cpu.greedy(logits.cpu()), torch_cpu.greedy(logits.to(lab.dtype).float().cpu())]
    yield compared(
        lab, what, lambda: [triton_.greedy(logits), triton_.greedy(logits.to(lab.dtype))], exact, _EXACTLY
    )


def _noise(lab: Lab, what: str, vocab: int) -> Iterator[Figure]:
    from orchestra.kernels.sampling import torch_cpu, triton_

    seeds, positions = torch.tensor([0, -1, 2**63 - 1]), torch.tensor([0, 8191, 2**40])
    exact = torch_cpu.exponential_noise(seeds, positions, vocab)
    there = seeds.to(lab.device), positions.to(lab.device)
    yield compared(lab, what, lambda: [triton_.exponential_noise(*there, vocab)], [exact], _FLOAT32)


def _plain_draws(lab: Lab, what: str, vocab: int) -> Iterator[Figure]:
    yield _draws(lab, what, vocab, [_WAYS[0]])


def _filtered_draws(lab: Lab, what: str, vocab: int) -> Iterator[Figure]:
    yield _draws(lab, what, vocab, _WAYS)


def _draws(lab: Lab, what: str, vocab: int, ways: list[tuple[float, int, float, float]]) -> Figure:
    """The share of draws that are the CPU's."""
    from orchestra.kernels.sampling import torch_cpu, triton_

    logits = _logits(lab, vocab)
    rows = len(logits)
    temperature, top_k, top_p, min_p = _parameters(rows, ways)
    seeds, positions = torch.arange(rows) * 10**15 - 5, torch.arange(rows) + 100
    here = (temperature, top_k, top_p, seeds, positions, min_p)
    expected = torch_cpu.sample(logits.cpu(), *here)
    drawn = triton_.sample(logits, *(given.to(lab.device) for given in here))
    again = triton_.sample(logits, *here)  # parameters may lie on the host
    equal = min(float((one.cpu() == expected).double().mean()) for one in (drawn, again))
    return Figure(what=what, value=equal, unit="as on a CPU", target=_EQUAL)


def _kept(lab: Lab, what: str, vocab: int) -> Iterator[Figure]:
    """The share of rows in which at most one token is kept otherwise."""
    from orchestra.kernels.sampling import torch_cpu, triton_

    logits = _logits(lab, vocab)
    temperature, top_k, top_p, min_p = _parameters(len(logits), _WAYS)
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature.to(lab.device)[:, None]
    expected = torch_cpu.keep_mask(scaled.cpu(), top_k, top_p, min_p)
    kept = triton_.keep_mask(scaled, *(given.to(lab.device) for given in (top_k, top_p, min_p)))
    different = (kept.cpu() != expected).sum(-1)
    yield Figure(what=what, value=float((different <= 1).double().mean()), unit="rows as on a CPU", target=_EQUAL)


def _around(lab: Lab, what: str, vocab: int) -> Iterator[Figure]:
    """Forbidden tokens, bias, penalties, log-probabilities and ranks."""
    from orchestra.kernels.sampling import torch_cpu, triton_

    logits = torch.randn(4, vocab, device=lab.device) * 3
    words = torch.randint(-(2**31), 2**31, (4, vocab // 32), dtype=torch.int32)  # the last tokens have none
    rows, tokens = torch.tensor([0, 0, 3]), torch.tensor([5, vocab - 1, 7])
    values = torch.tensor([1.5, -2.0, float("-inf")])
    history = torch.tensor([[5, 5, 9], [1, 2, -1], [vocab - 1, 3, 3], [4, -1, -1]])
    is_output = torch.tensor([[False, True, True], [True, True, False], [True] * 3, [False] * 3])
    penalties = torch.tensor([[1.2, 1.0, 0.8, 1.0], [0.5, 0.0, 1.0, 0.3], [0.1, 0.4, 0.0, 0.0]])
    chosen = torch.tensor([0, 5, vocab - 1, 64])
    one, none = torch.ones(4), torch.zeros(4, dtype=torch.int64)
    biased = torch_cpu.add_bias(logits.cpu(), rows, tokens, values)
    # a place of minus infinity has no difference to be measured: it must be the same
    exact = [
        _finite(torch_cpu.forbid(logits.cpu(), words)),
        _finite(biased),
        torch_cpu.penalize(logits.cpu(), history, is_output, *penalties),
        torch.log_softmax(logits.double().cpu(), dim=-1),
        *torch_cpu.rank_tokens(torch.log_softmax(logits.cpu(), dim=-1), chosen, 5),
    ]

    def there(*given: Tensor) -> list[Tensor]:
        return [tensor.to(lab.device) for tensor in given]

    def ours() -> list[Tensor]:
        likelihood = torch.log_softmax(logits.cpu(), dim=-1).to(lab.device)
        return [
            _finite(triton_.forbid(logits, *there(words))),
            _finite(triton_.add_bias(logits.clone(), *there(rows, tokens, values))),
            triton_.penalize(logits.clone(), *there(history, is_output, *penalties)),
            triton_.log_probabilities(logits, *there(one, none, one)),
            *triton_.rank_tokens(likelihood, *there(chosen), 5),
        ]

    yield compared(lab, what, ours, exact, _FLOAT32)


def _logits(lab: Lab, vocab: int) -> Tensor:
    """Logits of random rows, float32, as of a model that is sure of little."""
    return torch.randn(2 if lab.rehearsal else 64, vocab, device=lab.device) * 3


def _parameters(rows: int, ways: list[tuple[float, int, float, float]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    temperature, top_k, top_p, min_p = zip(*(ways[row % len(ways)] for row in range(rows)), strict=True)
    return torch.tensor(temperature), torch.tensor(top_k), torch.tensor(top_p), torch.tensor(min_p)


def _finite(logits: Tensor) -> Tensor:
    """``logits`` with NaN for minus infinity, which is compared by place."""
    return torch.where(logits == float("-inf"), float("nan"), logits)
