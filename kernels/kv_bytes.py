"""What of a KV pool's layout can be reckoned with where there is no torch (see `orchestra.kernels.kv_pool`)."""

from __future__ import annotations

__all__ = ["ABSMAX_BYTES"]

ABSMAX_BYTES = 8
"""Of a token and head in float8: for the largest magnitude of its key and that of its value, both float32."""
