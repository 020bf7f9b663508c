"""Attention over a paged KV pool: ``decode`` for rows of one query, ``extend`` for runs of queries.

A layer's pool is ``[blocks, kv_heads, block_size, 2 * head_dim]``: what one head wants of one block is contiguous,
and a token's key and value lie side by side, so that one gather fetches both (`orchestra.kernels.kv_pool` has the
rest, and what float8 adds). Position ``p`` of a sequence is at
offset ``p % block_size`` of block ``block_table[p // block_size]``.

Both operations come in two parts: a plan is made on the host once a step, and serves every layer. Neither reads
a slot that its sequence has not written: whatever stale blocks hold, NaN included, cannot reach a result.
"""

from orchestra.kernels.attention.torch_cpu import (
    DecodePlan,
    ExtendPlan,
    decode,
    extend,
    plan_decode,
    plan_extend,
)

__all__ = ["DecodePlan", "ExtendPlan", "decode", "extend", "plan_decode", "plan_extend"]
