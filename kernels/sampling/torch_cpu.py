"""Sampling on a CPU: the noise by hashing whole rows, the filters by sorting only what could pass them."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["exponential_noise", "greedy", "keep_mask", "sample"]

_CHUNK = 128


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token of each row of ``logits`` [rows, vocab]; the lowest id among equals: int64 [rows]."""
    return logits.argmax(dim=-1)


def keep_mask(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Which tokens may be drawn, bool [rows, vocab], from ``scaled`` logits (already over the temperature).

    First the ``top_k`` [rows] largest (0: all), then the fewest of those, largest first, whose probabilities
    reach ``top_p`` [rows] of what is left (1: all). Tokens equal to the last one kept are kept too, so that
    nothing depends on the order of equals. At least one token is kept.
    """
    keep = torch.empty(scaled.shape, dtype=torch.bool)
    for row, k, p, kept in zip(scaled, top_k.tolist(), top_p.tolist(), keep, strict=True):
        allowed = row
        if 0 < k < len(row):
            allowed = row.masked_fill(row < _kth_largest(row, k), float("-inf"))
        torch.gt(allowed, float("-inf"), out=kept)
        if p < 1:
            probability = torch.softmax(allowed, dim=-1)
            kept &= probability >= _last_of_nucleus(probability, p)
    return keep


def exponential_noise(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Exponential variables float32 [rows, vocab], each a function of (seed, position, token) alone.

    ``seeds`` and ``positions`` are int64 [rows].
    """
    key = _mix64(seeds ^ _mix64(positions))  # [rows]
    low, high = key.to(torch.int32)[:, None], (key >> 32).to(torch.int32)[:, None]
    bits = torch.arange(vocab, dtype=torch.int32).mul_(_signed(0x9E3779B9, 32)) + low  # [rows, vocab]
    bits = _mix32_(_mix32_(bits).bitwise_xor_(high))
    # int32 to (0, 1): a small value, which is an early arrival and decides the race, keeps all its digits
    uniform = bits.to(torch.float32).add_(0.5).mul_(2.0**-32)
    uniform = torch.where(uniform < 0, uniform + 1, uniform).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_()


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, seeds: Tensor, positions: Tensor
) -> Tensor:
    """Draw one token of each row of ``logits`` [rows, vocab]: int64 [rows].

    ``temperature`` float32 [rows] above 0; ``top_k`` int64 [rows]; ``top_p`` float32 [rows];
    ``seeds`` and ``positions`` int64 [rows].
    """
    scaled = (logits - logits.amax(dim=-1, keepdim=True)).div_(temperature[:, None])
    arrival = scaled - exponential_noise(seeds, positions, logits.shape[1]).log_()
    filtered = (top_k > 0) | (top_p < 1)
    if filtered.any():
        keep = keep_mask(scaled[filtered], top_k[filtered], top_p[filtered])
        arrival[filtered] = arrival[filtered].masked_fill_(~keep, float("-inf"))
    return arrival.argmax(dim=-1)


def _kth_largest(row: Tensor, k: int) -> Tensor:
    """The ``k``-th largest value of ``row`` [vocab], a scalar."""
    chunks = row[: len(row) // _CHUNK * _CHUNK].view(-1, _CHUNK)
    if k <= len(chunks):  # at least k values reach the k-th largest of the chunks' maxima: look at those only
        row = row[row >= chunks.amax(dim=-1).topk(k).values[-1]]
    return row.topk(k).values[-1]


def _last_of_nucleus(probability: Tensor, top_p: float) -> Tensor:
    """The probability of the last token that top-p keeps of ``probability`` [vocab], a scalar."""
    # the tokens below this make less than 1 - top_p together, so none of them is in the nucleus
    candidates = probability[probability >= (1 - top_p) / len(probability) * 0.99]
    descending = candidates.sort(descending=True).values
    mass_before = descending.cumsum(dim=0, dtype=torch.float64) - descending
    kept = int((mass_before < top_p).sum())  # at least 1: nothing comes before the first
    return descending[kept - 1]


def _signed(value: int, bits: int) -> int:
    """The signed integer with the bit pattern of an unsigned one: torch multiplies signed ones, wrapping."""
    return value - (1 << bits) if value >> (bits - 1) else value


def _shift(x: Tensor, by: int, bits: int) -> Tensor:
    """Logical right shift (torch's own copies the sign)."""
    return (x >> by).bitwise_and_((1 << (bits - by)) - 1)


def _mix64(x: Tensor) -> Tensor:
    """The output function of SplitMix64 (Steele, Lea and Flood, 2014)."""
    x = x + _signed(0x9E3779B97F4A7C15, 64)
    x = (x ^ _shift(x, 30, 64)) * _signed(0xBF58476D1CE4E5B9, 64)
    x = (x ^ _shift(x, 27, 64)) * _signed(0x94D049BB133111EB, 64)
    return x ^ _shift(x, 31, 64)


def _mix32_(x: Tensor) -> Tensor:
    """The finalizer of MurmurHash3 (Appleby, public domain), in place."""
    x.bitwise_xor_(_shift(x, 16, 32)).mul_(_signed(0x85EBCA6B, 32))
    x.bitwise_xor_(_shift(x, 13, 32)).mul_(_signed(0xC2B2AE35, 32))
    return x.bitwise_xor_(_shift(x, 16, 32))
