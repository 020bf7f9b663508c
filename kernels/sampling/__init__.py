"""The next token from logits: what changes them, ``greedy``, and ``sample`` with stateless noise, so that
neighbours never matter.
"""

from orchestra.kernels.sampling.torch_cpu import (
    add_bias,
    exponential_noise,
    forbid,
    greedy,
    keep_mask,
    log_probabilities,
    penalize,
    rank_tokens,
    sample,
)

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
