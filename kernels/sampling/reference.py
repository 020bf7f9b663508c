"""What the sampling operations mean, one row and one token at a time.

A draw is an exponential race: token ``i`` of probability ``p_i`` arrives at time ``E_i / p_i`` with independent
exponential ``E_i``, and the first to arrive is the draw; it is ``i`` with probability ``p_i``. (In logarithms this
is the Gumbel-max trick.) ``E_i`` is a hash of (seed, position, i): nothing else can change a draw.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "add_bias",
    "exponential_noise",
    "forbid",
    "greedy",
    "keep_mask",
    "log_probabilities",
    "penalize",
    "rank_tokens",
    "sample",
]

_MASK32 = (1 << 32) - 1
_MASK64 = (1 << 64) - 1


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token of each row of ``logits`` [rows, vocab]; the lowest id among equals: int64 [rows]."""
    return torch.tensor([max(range(len(row)), key=row.__getitem__) for row in logits.tolist()])


def add_bias(logits: Tensor, rows: Tensor, tokens: Tensor, values: Tensor) -> Tensor:
    """``logits`` [rows, vocab] with ``values[i]`` added at (``rows[i]``, ``tokens[i]``).

    ``rows`` and ``tokens`` are int64 [entries], ``values`` float32 [entries]; a place may be named more than once.
    Minus infinity forbids a token, whatever else is added to it.
    """
    biased = logits.clone()
    for row, token, value in zip(rows.tolist(), tokens.tolist(), values.tolist(), strict=True):
        biased[row, token] += value
    return biased


def penalize(
    logits: Tensor, tokens: Tensor, is_output: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    """``logits`` [rows, vocab] after the penalties on what was said already.

    ``tokens`` int64 [rows, length] are the tokens of prompt and output, -1 where a row is shorter; ``is_output``
    bool [rows, length] marks those of the output. The penalties are float32 [rows]. A token that occurs anywhere
    has its logit divided by ``repetition`` where it is positive, else multiplied (Keskar et al., CTRL, 2019; 1 is
    off). From a token of the output, ``frequency`` is taken as often as it occurs there, and ``presence`` once
    (0 is off).
    """
    penalized = logits.clone()
    for row, history in enumerate(tokens.tolist()):
        marked = zip(history, is_output[row].tolist(), strict=True)
        output = [token for token, is_own in marked if is_own and token >= 0]
        for token in set(history) - {-1}:
            value = penalized[row, token]
            value = value / repetition[row] if value > 0 else value * repetition[row]
            if count := output.count(token):
                value = value - frequency[row] * count - presence[row]
            penalized[row, token] = value
    return penalized


def forbid(logits: Tensor, allowed: Tensor) -> Tensor:
    """``logits`` [rows, vocab] with minus infinity where a token is not allowed.

    Token ``t`` is allowed where bit ``t % 32`` of ``allowed[row, t // 32]`` is set: int32 [rows, words]. A
    vocabulary that goes beyond the words is not allowed there.
    """
    masked = torch.full_like(logits, float("-inf"))
    for row, words in enumerate(allowed.tolist()):
        for token in range(min(logits.shape[1], 32 * len(words))):
            if words[token // 32] >> token % 32 & 1:
                masked[row, token] = logits[row, token]
    return masked


def keep_mask(scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor | None = None) -> Tensor:
    """Which tokens may be drawn, bool [rows, vocab], from ``scaled`` logits (already over the temperature).

    First those at least ``min_p`` [rows] times as probable as the likeliest (0: all; Nguyen et al., 2024), of
    these the ``top_k`` [rows] largest (0: all), then the fewest of those, largest first, whose probabilities
    reach ``top_p`` [rows] of what is left (1: all). Tokens equal to the last one kept are kept too, so that
    nothing depends on the order of equals. At least one token is kept.
    """
    keep = torch.zeros(scaled.shape, dtype=torch.bool)
    for row, values in enumerate(scaled):
        k, p = int(top_k[row]), float(top_p[row])
        allowed = values
        if min_p is not None:
            allowed = values.masked_fill(values < values.max() + min_p[row].log(), float("-inf"))
            values = allowed
        if k:
            kth = torch.sort(values, descending=True).values[min(k, len(values)) - 1]
            allowed = values.masked_fill(values < kth, float("-inf"))
        probability = torch.softmax(allowed, dim=0)
        descending = torch.sort(probability, descending=True).values
        mass_before = torch.cumsum(descending, dim=0, dtype=torch.float64) - descending
        last = descending[mass_before < p].min() if p < 1 else descending[-1]
        keep[row] = (probability >= last) & (allowed > float("-inf"))
    return keep


def exponential_noise(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Exponential variables float32 [rows, vocab], each a function of (seed, position, token) alone.

    ``seeds`` and ``positions`` are int64 [rows].
    """
    rows = []
    for seed, position in zip(seeds.tolist(), positions.tolist(), strict=True):
        key = _mix64((seed ^ _mix64(position)) & _MASK64)
        low, high = key & _MASK32, key >> 32
        bits = [_mix32(_mix32((token * 0x9E3779B9 + low) & _MASK32) ^ high) for token in range(vocab)]
        rows.append([-math.log1p(-(b + 0.5) / 2**32) for b in bits])
    return torch.tensor(rows, dtype=torch.float32)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    min_p: Tensor | None = None,
) -> Tensor:
    """Draw one token of each row of ``logits`` [rows, vocab]: int64 [rows].

    ``temperature`` float32 [rows] above 0; ``top_k`` int64 [rows]; ``top_p`` and ``min_p`` float32 [rows];
    ``seeds`` and ``positions`` int64 [rows].
    """
    scaled = (logits - logits.max(dim=-1, keepdim=True).values) / temperature[:, None]
    noise = exponential_noise(seeds, positions, logits.shape[1])
    arrival = torch.where(keep_mask(scaled, top_k, top_p, min_p), scaled - noise.log(), float("-inf"))
    return arrival.argmax(dim=-1)


def log_probabilities(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor | None = None,
) -> Tensor:
    """The logarithms of the probabilities that :func:`sample` draws by, float32 [rows, vocab].

    Minus infinity where a token is not kept. The arguments are those of :func:`sample`.
    """
    scaled = (logits - logits.max(dim=-1, keepdim=True).values) / temperature[:, None]
    kept = scaled.masked_fill(~keep_mask(scaled, top_k, top_p, min_p), float("-inf"))
    return torch.stack([torch.log_softmax(row, dim=0) for row in kept]) if len(kept) else kept


def rank_tokens(logprobs: Tensor, chosen: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What to tell of ``chosen`` int64 [rows] among ``logprobs`` [rows, vocab].

    Returns its value float32 [rows] and its rank int64 [rows] (1 + how many are larger), and the ``top`` largest
    values float32 [rows, top] with their tokens int64 [rows, top]: largest first, the lower id among equals.
    """
    values, ranks, top_values, top_tokens = [], [], [], []
    for row, token in zip(logprobs.tolist(), chosen.tolist(), strict=True):
        values.append(row[token])
        ranks.append(1 + sum(value > row[token] for value in row))
        best = sorted(range(len(row)), key=lambda t, row=row: (-row[t], t))[:top]  # type: ignore[misc]
        top_values.append([row[t] for t in best])
        top_tokens.append(best)
    shape = (len(values), min(top, logprobs.shape[1]))
    return (
        torch.tensor(values, dtype=torch.float32),
        torch.tensor(ranks, dtype=torch.int64),
        torch.tensor(top_values, dtype=torch.float32).reshape(shape),
        torch.tensor(top_tokens, dtype=torch.int64).reshape(shape),
    )


def _mix64(x: int) -> int:
    """The output function of SplitMix64 (Steele, Lea and Flood, 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK64
    return x ^ x >> 31


def _mix32(x: int) -> int:
    """The finalizer of MurmurHash3 (Appleby, public domain)."""
    x = (x ^ x >> 16) * 0x85EBCA6B & _MASK32
    x = (x ^ x >> 13) * 0xC2B2AE35 & _MASK32
    return x ^ x >> 16
