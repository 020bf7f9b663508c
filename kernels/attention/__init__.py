"""Attention over a paged KV pool: ``decode`` for rows of one query, ``extend`` for runs of queries.

A layer's pool is ``[blocks, block_size, kv_heads, 2 * head_dim]``: a token's key and value of one head lie side by
side, so that one gather fetches both, head by head, and a token's write is one contiguous row. Position ``p`` of a
sequence is at offset ``p % block_size`` of block ``block_table[p // block_size]``.

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
