"""What the sampling operations mean, one row and one token at a time.

A draw is an exponential race: token ``i`` of probability ``p_i`` arrives at time ``E_i / p_i`` with independent
exponential ``E_i``, and the first to arrive is the draw; it is ``i`` with probability ``p_i``. (In logarithms this
is the Gumbel-max trick.) ``E_i`` is a hash of (seed, position, i): nothing else can change a draw.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["exponential_noise", "greedy", "keep_mask", "sample"]

_MASK32 = (1 << 32) - 1
_MASK64 = (1 << 64) - 1


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token of each row of ``logits`` [rows, vocab]; the lowest id among equals: int64 [rows]."""
    return torch.tensor([max(range(len(row)), key=row.__getitem__) for row in logits.tolist()])


def keep_mask(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Which tokens may be drawn, bool [rows, vocab], from ``scaled`` logits (already over the temperature).

    First the ``top_k`` [rows] largest (0: all), then the fewest of those, largest first, whose probabilities
    reach ``top_p`` [rows] of what is left (1: all). Tokens equal to the last one kept are kept too, so that
    nothing depends on the order of equals. At least one token is kept.
    """
    keep = torch.zeros(scaled.shape, dtype=torch.bool)
    for row, values in enumerate(scaled):
        k, p = int(top_k[row]), float(top_p[row])
        allowed = values
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
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seeds: Tensor, positions: Tensor
) -> Tensor:
    """Draw one token of each row of ``logits`` [rows, vocab]: int64 [rows].

    ``temperature`` float32 [rows] above 0; ``top_k`` int64 [rows]; ``top_p`` float32 [rows];
    ``seeds`` and ``positions`` int64 [rows].
    """
    scaled = (logits - logits.max(dim=-1, keepdim=True).values) / temperature[:, None]
    noise = exponential_noise(seeds, positions, logits.shape[1])
    arrival = torch.where(keep_mask(scaled, top_k, top_p), scaled - noise.log(), float("-inf"))
    return arrival.argmax(dim=-1)


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
