"""Rotary embedding of queries and keys, fused with the write of keys and values: ``rope_kv``."""

from orchestra.kernels.rope_kv.torch_cpu import rope_kv

__all__ = ["rope_kv"]
