"""What a KV pool looks like: shape, type and bytes, and how keys and values lie in one of eight bits.

A layer's pool is ``[blocks, kv_heads, block_size, width]``. In float32, float16 and bfloat16 the width is
``2 * head_dim``: a token's key, then its value.

In float8 (e4m3: Micikevicius et al., 2022, arXiv 2209.05433) a token and head have ``ABSMAX_BYTES`` more, for the
largest magnitude of its key and that of its value, both float32. What is stored of a vector is ``448 / absmax``
times it, 448 being the largest e4m3 has. So each token and head has a scale of its own, whatever a channel of
another does, and nothing must be calibrated. Within a block and head all keys and values come first, and the
largest magnitudes of its tokens follow, pair after pair: rows of keys and values then begin at multiples of 16
bytes, and a copy of the block takes its scales along.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from orchestra.kernels.kv_bytes import ABSMAX_BYTES

__all__ = [
    "ABSMAX_BYTES",
    "FLOAT8",
    "FLOAT8_MAX",
    "KvLayout",
    "absmax_of",
    "check_float8",
    "head_dim_of",
    "refuse_float8",
    "unpacked",
    "write_slots",
]

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = 448.0
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, FLOAT8)
_LEAST_ABSMAX = 1e-30  # so that a vector of zeros is divided by something


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """How a model's keys and values are kept: by blocks of ``block_size`` tokens, in ``dtype``.

    Raises ValueError for a type other than float32, float16, bfloat16 and float8_e4m3fn, for sizes below 1, and
    in float8 for a ``head_dim`` that is odd.
    """

    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            raise ValueError(f"keys and values are kept in {known}, not in {self.dtype}")
        if min(self.kv_heads, self.head_dim, self.block_size) < 1:
            raise ValueError("kv_heads, head_dim and block_size must be at least 1")
        if self.dtype == FLOAT8 and self.head_dim % 2:
            raise ValueError(f"in float8 a head has an even number of dimensions, not {self.head_dim}")

    @property
    def width(self) -> int:
        """Elements of one token and head in one layer."""
        return 2 * self.head_dim + (ABSMAX_BYTES if self.dtype == FLOAT8 else 0)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in one layer, over all heads."""
        return self.kv_heads * self.width * self.dtype.itemsize

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block in one layer."""
        return self.bytes_per_token * self.block_size

    def allocate(self, num_layers: int, num_blocks: int, device: torch.device) -> Tensor:
        """Pools of all layers, zero: ``[num_layers, num_blocks, kv_heads, block_size, width]``, without gaps.

        On a CPU, memory is committed as it is first written. Raises ValueError where ``device`` cannot compute
        with ``dtype``, and torch.OutOfMemoryError where a GPU has too little memory.
        """
        if self.dtype == FLOAT8:
            check_float8(device)
        shape = (num_layers, num_blocks, self.kv_heads, self.block_size, self.width)
        if device.type != "cpu":
            return torch.zeros(shape, dtype=self.dtype, device=device)
        # numpy's zeros, unlike torch's, leave untouched pages to the operating system
        flat = numpy.zeros(num_layers * num_blocks * self.bytes_per_block, numpy.uint8)
        return torch.from_numpy(flat).view(self.dtype).view(shape)


def head_dim_of(pool: Tensor) -> int:
    """Return the size of a head in a layer's ``pool``."""
    width = pool.shape[-1]
    return (width - ABSMAX_BYTES if pool.dtype == FLOAT8 else width) // 2


def absmax_of(pool: Tensor) -> Tensor | None:
    """Return a float8 ``pool`` of a layer as float32, where its scales can be read and written; else None.

    Its elements lie at ``block * kv_heads + kv_head`` times ``block_size * width / 4``; the pair of a token is at
    ``block_size * head_dim / 2 + 2 * token`` from there, the key's before the value's.
    """
    return pool.view(torch.float32) if pool.dtype == FLOAT8 else None


def refuse_float8(pool: Tensor) -> None:
    """Raise ValueError for a pool of float8, in operations that do not know it."""
    if pool.dtype == FLOAT8:
        raise ValueError("a KV pool of float8 is for GPUs: on a CPU, keys and values are kept in float32")


def write_slots(pool: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
    """Write ``keys`` and ``values`` [n, head_dim] to the ``slots`` [n] of a layer's ``pool``, as it keeps them.

    Slots count tokens and heads, as rows of a pool flattened to ``[blocks * kv_heads * block_size, width]``. In
    plain torch: what it means, for references and tests.
    """
    if pool.dtype != FLOAT8:
        pool.view(-1, pool.shape[-1])[slots] = torch.cat([keys, values], dim=-1).to(pool.dtype)
        return
    vectors = torch.stack([keys, values], dim=1)  # [n, 2, head_dim]
    absmax = vectors.abs().amax(dim=-1).float().clamp(min=_LEAST_ABSMAX)
    data, scales = _float8_parts(pool)
    scaled = vectors * (FLOAT8_MAX / absmax[..., None])
    section, token = slots // pool.shape[2], slots % pool.shape[2]
    data[section, token] = scaled.to(FLOAT8)
    scales[section, token] = absmax


def unpacked(pool: Tensor) -> Tensor:
    """Return keys and values of a layer as numbers, ``[blocks, kv_heads, block_size, 2 * head_dim]``.

    That is the ``pool`` itself, but for one of float8: its contents in float32.
    """
    if pool.dtype != FLOAT8:
        return pool
    data, scales = _float8_parts(pool)
    return (data.float() * (scales[..., None] / FLOAT8_MAX)).view(*pool.shape[:3], -1)


def _float8_parts(pool: Tensor) -> tuple[Tensor, Tensor]:
    """Elements [sections, block_size, 2, head_dim] and largest magnitudes [sections, block_size, 2], as views.

    A section is a block and head. The second index tells a key from a value.
    """
    blocks, kv_heads, block_size = pool.shape[:3]
    head_dim = head_dim_of(pool)
    sections = pool.view(blocks * kv_heads, -1)
    split = block_size * 2 * head_dim
    data = sections[:, :split].view(-1, block_size, 2, head_dim)
    scales = sections[:, split:].view(torch.float32).view(-1, block_size, 2)
    return data, scales


def check_float8(device: torch.device) -> None:
    """Raise ValueError where a GPU has no conversions of float8."""
    if device.type != "cuda" or torch.version.hip is not None:
        return
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 9):
        name = torch.cuda.get_device_name(device)
        raise ValueError(f"{name} is sm_{major}{minor}, and float8 keys and values want sm_89 or newer")
