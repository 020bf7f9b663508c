"""Sampling on a CPU, all rows at once: noise by hashing, filters by sorting only what could pass them."""

from __future__ import annotations

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

_NEVER = float("-inf")


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token of each row of ``logits`` [rows, vocab]; the lowest id among equals: int64 [rows]."""
    return logits.argmax(dim=-1)


def add_bias(logits: Tensor, rows: Tensor, tokens: Tensor, values: Tensor) -> Tensor:
    """``logits`` [rows, vocab] with ``values[i]`` added at (``rows[i]``, ``tokens[i]``).

    ``rows`` and ``tokens`` are int64 [entries], ``values`` float32 [entries]; a place may be named more than once.
    Minus infinity forbids a token, whatever else is added to it.
    """
    return logits.index_put((rows, tokens), values, accumulate=True)


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
    vocab = logits.shape[1]
    place = torch.where(tokens < 0, vocab, tokens)  # what is missing goes to a column of its own
    wide = torch.cat([logits, logits.new_zeros(len(logits), 1)], dim=1)  # [rows, vocab + 1]
    counts = torch.zeros_like(wide).scatter_add_(1, place, is_output.to(torch.float32))
    value, count = wide.gather(1, place), counts.gather(1, place)  # [rows, length]
    value = torch.where(value > 0, value / repetition[:, None], value * repetition[:, None])
    value = value - frequency[:, None] * count - torch.where(count > 0, presence[:, None], 0.0)
    return wide.scatter_(1, place, value)[:, :vocab]  # a token that occurs twice gets the same value twice


def forbid(logits: Tensor, allowed: Tensor) -> Tensor:
    """``logits`` [rows, vocab] with minus infinity where a token is not allowed.

    Token ``t`` is allowed where bit ``t % 32`` of ``allowed[row, t // 32]`` is set: int32 [rows, words]. A
    vocabulary that goes beyond the words is not allowed there.
    """
    vocab = logits.shape[1]
    octets = allowed.contiguous().view(torch.uint8)  # [rows, 4 * words], the lowest bits first
    bits = octets[:, :, None].bitwise_and(2 ** torch.arange(8, dtype=torch.uint8)) != 0
    bits = bits.flatten(1)[:, :vocab]
    masked = torch.full_like(logits, _NEVER)
    masked[:, : bits.shape[1]] = logits[:, : bits.shape[1]].masked_fill(~bits, _NEVER)
    return masked


def keep_mask(scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor | None = None) -> Tensor:
    """Which tokens may be drawn, bool [rows, vocab], from ``scaled`` logits (already over the temperature).

    First those at least ``min_p`` [rows] times as probable as the likeliest (0: all; Nguyen et al., 2024), of
    these the ``top_k`` [rows] largest (0: all), then the fewest of those, largest first, whose probabilities
    reach ``top_p`` [rows] of what is left (1: all). Tokens equal to the last one kept are kept too, so that
    nothing depends on the order of equals. At least one token is kept.
    """
    vocab = scaled.shape[1]
    allowed = scaled
    if min_p is not None:
        bound = scaled.amax(dim=-1) + min_p.log()
        allowed = scaled.masked_fill(scaled < bound[:, None], _NEVER)
    by_rank = (top_k > 0) & (top_k < vocab)
    if by_rank.any():
        kth = torch.where(by_rank, _kth_largest(allowed, torch.where(by_rank, top_k, 1)), _NEVER)
        allowed = allowed.masked_fill(allowed < kth[:, None], _NEVER)
    keep = allowed > _NEVER
    by_mass = top_p < 1
    if by_mass.any():
        probability = torch.softmax(allowed, dim=-1)
        last = torch.where(by_mass, _last_of_nucleus(probability, torch.where(by_mass, top_p, 0.0)), 0.0)
        keep &= probability >= last[:, None]
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
    scaled = _scaled(logits, temperature)
    arrival = scaled - exponential_noise(seeds, positions, logits.shape[1]).log_()
    filtered = (top_k > 0) | (top_p < 1)
    if min_p is not None:
        filtered |= min_p > 0
    if filtered.any():
        least = None if min_p is None else min_p[filtered]
        keep = keep_mask(scaled[filtered], top_k[filtered], top_p[filtered], least)
        arrival[filtered] = arrival[filtered].masked_fill_(~keep, _NEVER)
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
    scaled = _scaled(logits, temperature)
    return torch.log_softmax(scaled.masked_fill_(~keep_mask(scaled, top_k, top_p, min_p), _NEVER), dim=-1)


def rank_tokens(logprobs: Tensor, chosen: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What to tell of ``chosen`` int64 [rows] among ``logprobs`` [rows, vocab].

    Returns its value float32 [rows] and its rank int64 [rows] (1 + how many are larger), and the ``top`` largest
    values float32 [rows, top] with their tokens int64 [rows, top]: largest first, the lower id among equals.
    """
    value = logprobs.gather(1, chosen[:, None])  # [rows, 1]
    rank = 1 + (logprobs > value).sum(dim=-1)
    top = min(top, logprobs.shape[1])
    if not top or not len(logprobs):
        return value[:, 0], rank, logprobs[:, :top], torch.empty(len(chosen), top, dtype=torch.int64)
    last = logprobs.topk(top, dim=-1).values[:, -1:]
    # of those equal to the last of the top, as many as there is room for, from the lowest id up
    above, equal = logprobs > last, logprobs == last
    room = top - above.sum(dim=-1, keepdim=True)
    tokens = (above | (equal & (equal.cumsum(dim=-1) <= room))).nonzero()[:, 1].view(-1, top)
    values, order = logprobs.gather(1, tokens).sort(dim=-1, descending=True, stable=True)
    return value[:, 0], rank, values, tokens.gather(1, order)


def _scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    return (logits - logits.amax(dim=-1, keepdim=True)).div_(temperature[:, None])


def _kth_largest(values: Tensor, k: Tensor) -> Tensor:
    """The ``k`` [rows]-th largest of ``values`` [rows, vocab]: [rows]."""
    largest = values.topk(int(k.max()), dim=-1).values
    return largest.gather(1, k[:, None] - 1)[:, 0]


def _last_of_nucleus(probability: Tensor, top_p: Tensor) -> Tensor:
    """The probability of the last token that ``top_p`` [rows] keeps of ``probability`` [rows, vocab]: [rows]."""
    # the tokens below this make less than 1 - top_p together, so none of them is in the nucleus
    least = (1 - top_p) / probability.shape[1] * 0.99
    candidates = int((probability >= least[:, None]).sum(dim=-1).max())
    descending = probability.topk(candidates, dim=-1).values  # [rows, candidates]
    mass_before = descending.cumsum(dim=-1, dtype=torch.float64) - descending
    kept = (mass_before < top_p[:, None]).sum(dim=-1, keepdim=True)
    return descending.gather(1, (kept - 1).clamp_(min=0))[:, 0]  # at least 1: nothing comes before the first


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
