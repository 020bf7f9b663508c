"""How far a model's answers are from those that it gives in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

__all__ = ["Answers", "Quality", "answers_of"]

Logits = Callable[[Sequence[int]], Tensor]
"""The logits [tokens, vocab] of what follows each token of a text, float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """One precision against float32, over texts that both have read and outputs that float32 has written.

    ``perplexity`` of the ``tokens`` tokens of prose, and ``perplexity_float32`` of the same. ``divergence``: the
    Kullback-Leibler divergence of its distributions from float32's, in nats a token. ``same_likeliest``: the share
    of places in the prose where the same token is the likeliest. ``same_output`` of the ``output_tokens`` tokens
    of float32's greedy outputs are its own choice too, given what came before.
    """

    tokens: int
    perplexity: float
    perplexity_float32: float
    divergence: float
    same_likeliest: float
    output_tokens: int
    same_output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a model says about ``passages`` and, greedily, after ``beginnings``. All are token ids.

    ``likelihoods``: for each passage the logarithms of the probabilities of what follows each token but the last.
    """

    passages: Sequence[Sequence[int]]
    beginnings: Sequence[Sequence[int]]
    outputs: Sequence[Sequence[int]]
    likelihoods: Sequence[Tensor] = field(repr=False)

    def quality(self, logits: Logits) -> Quality:
        """These being float32's answers, how near to them another comes whose ``logits`` are given."""
        own_loss = loss = divergence = 0.0
        same = 0
        for passage, likelihood in zip(self.passages, self.likelihoods, strict=True):
            other = _likelihood(logits, passage)
            own_loss += _loss(likelihood, passage)
            loss += _loss(other, passage)
            divergence += F.kl_div(other, likelihood, log_target=True, reduction="sum").item()
            same += int((other.argmax(-1) == likelihood.argmax(-1)).sum())
        tokens = sum(len(passage) - 1 for passage in self.passages)
        same_output = 0
        for beginning, output in zip(self.beginnings, self.outputs, strict=True):
            chosen = logits([*beginning, *output[:-1]])[len(beginning) - 1 :].argmax(-1)
            same_output += int((chosen == torch.tensor(output)).sum())
        return Quality(
            tokens=tokens,
            perplexity=math.exp(loss / tokens),
            perplexity_float32=math.exp(own_loss / tokens),
            divergence=divergence / tokens,
            same_likeliest=same / tokens,
            output_tokens=sum(map(len, self.outputs)),
            same_output=same_output,
        )


def answers_of(
    logits: Logits,
    passages: Sequence[Sequence[int]],
    beginnings: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
) -> Answers:
    """What is to be kept of a model, of ``passages`` of at least two tokens and ``outputs`` of at least one."""
    likelihoods = [_likelihood(logits, passage) for passage in passages]
    return Answers(passages=passages, beginnings=beginnings, outputs=outputs, likelihoods=likelihoods)


def _likelihood(logits: Logits, passage: Sequence[int]) -> Tensor:
    return torch.log_softmax(logits(passage)[:-1], dim=-1)


def _loss(likelihood: Tensor, passage: Sequence[int]) -> float:
    """The negative log-likelihood of the passage's tokens but the first, summed."""
    return -likelihood.gather(1, torch.tensor(passage[1:])[:, None]).sum(dtype=torch.float64).item()
