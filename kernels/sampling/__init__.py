"""The next token from logits: ``greedy``, and ``sample`` with stateless noise, so that neighbours never matter."""

from orchestra.kernels.sampling.torch_cpu import exponential_noise, greedy, keep_mask, sample

__all__ = ["exponential_noise", "greedy", "keep_mask", "sample"]
