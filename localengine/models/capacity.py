"""What fits: memory to weights, blocks and concurrent requests. Arithmetic, but for one look at free memory."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestra.kernels.kv_bytes import ABSMAX_BYTES
from orchestra.localengine.models.layout import EMBEDDING, tensor_shapes
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.precision import Precision

__all__ = [
    "Capacity",
    "KvDtype",
    "available_memory",
    "default_kv_bytes",
    "human",
    "kv_bytes_per_token",
    "plan_capacity",
    "step_weight_bytes",
    "weight_bytes",
    "weight_values",
]

KvDtype = Literal["float32", "bfloat16", "float16", "float8"]
"""What keys and values can be kept in; float8 only by GPUs, from NVIDIA's of 2022 on."""

_FLOAT32_BYTES = 4
_HALVES = ("bfloat16", "float16")  # in which only a GPU computes
_INT8_COLUMNS = 512  # FBGEMM fills the columns of a matrix up to a multiple of this
_INT8_ROW_BYTES = 12  # and has a scale, a zero point and a sum for each row
_DEFAULT_KV_LIMIT = 1 << 30
_DEFAULT_KV_SHARE = 4  # a quarter of the free memory: weights, activations and the application want the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A model's memory and what it can hold at once, in bytes, blocks and tokens.

    ``weight_bytes``: as the engine keeps them. ``num_blocks`` blocks of ``block_size`` tokens make the KV pool.
    ``windowed_layers`` see a window only; their keys and values are kept for the whole context all the same.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    block_size: int
    num_blocks: int
    max_position: int
    windowed_layers: int = 0

    @property
    def kv_bytes_per_block(self) -> int:
        return self.kv_bytes_per_token * self.block_size

    @property
    def kv_bytes(self) -> int:
        return self.kv_bytes_per_block * self.num_blocks

    @property
    def max_tokens(self) -> int:
        """Tokens that the pool holds."""
        return self.num_blocks * self.block_size

    @property
    def max_context(self) -> int:
        """The longest request, prompt and output together, in tokens."""
        return min(self.max_position, self.max_tokens)

    def concurrency(self, tokens: int) -> int:
        """How many requests of ``tokens`` tokens each, prompt and output together, the pool holds at once.

        The last token of an output takes no room: nothing is computed after it.
        """
        if tokens < 1:
            raise ValueError(f"a request has at least 1 token, not {tokens}")
        if tokens > self.max_context:
            return 0
        return self.num_blocks // -(-max(tokens - 1, 1) // self.block_size)

    def describe(self) -> str:
        """Two or three sentences for people."""
        whole = self.max_context
        told = (
            f"Weights take {human(self.weight_bytes)} and the KV cache {human(self.kv_bytes)}, which is "
            f"{self.max_tokens:,} tokens in {self.num_blocks:,} blocks of {self.block_size}. "
            f"That holds {self.concurrency(min(512, whole)):,} requests of {min(512, whole):,} tokens at once, "
            f"or {self.concurrency(whole):,} of the longest possible, {whole:,}."
        )
        if self.windowed_layers:
            told += (
                f" The KV of its {self.windowed_layers} layers with a window is kept for the whole context, too."
            )
        return told


def plan_capacity(
    spec: ModelSpec,
    *,
    block_size: int,
    kv_bytes: int | None = None,
    free_bytes: int | None = None,
    precision: Precision = "float32",
) -> Capacity:
    """What fits into ``kv_bytes`` of KV cache.

    None asks :func:`default_kv_bytes` for it, with ``free_bytes`` of memory beside the weights (None: what is
    free now, which is right once the weights are loaded). ``precision`` is that of the weights. Raises ValueError
    where not even one block fits.
    """
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, not {block_size}")
    if kv_bytes is None:
        kv_bytes = default_kv_bytes(available_memory() if free_bytes is None else free_bytes)
    token_bytes = kv_bytes_per_token(spec, precision)
    num_blocks = kv_bytes // (token_bytes * block_size)
    if num_blocks < 1:
        raise ValueError(
            f"a KV cache of {human(kv_bytes)} holds no block of {block_size} tokens, which takes "
            f"{human(token_bytes * block_size)}: raise kv_bytes, or free some memory"
        )
    return Capacity(
        weight_bytes=weight_bytes(spec, precision),
        kv_bytes_per_token=token_bytes,
        block_size=block_size,
        num_blocks=num_blocks,
        max_position=spec.max_position,
        windowed_layers=len(spec.sliding_layers),
    )


def weight_values(spec: ModelSpec) -> int:
    """Numbers in the model's weights: its parameters, a tied embedding counted once."""
    return sum(math.prod(shape) for shape in tensor_shapes(spec).values())


def kv_bytes_per_token(spec: ModelSpec, precision: Precision = "float32", kv_dtype: KvDtype | None = None) -> int:
    """Memory that the KV cache takes for one token. ``kv_dtype`` None goes with weights in ``precision``."""
    kept = kv_dtype or precision
    if kept == "float8":
        return spec.kv_values_per_token + spec.num_layers * spec.num_kv_heads * ABSMAX_BYTES
    return spec.kv_values_per_token * (2 if kept in _HALVES else _FLOAT32_BYTES)


def default_kv_bytes(free_bytes: int) -> int:
    """KV cache for a machine with ``free_bytes`` of memory: a quarter of it, at most 1 GiB."""
    return max(0, min(_DEFAULT_KV_LIMIT, free_bytes // _DEFAULT_KV_SHARE))


def available_memory() -> int:
    """Bytes that may be allocated without swapping, within the container's limit where there is one."""
    linux = _fields(Path("/proc/meminfo")).get("MemAvailable:")  # KiB
    free = _half_of_physical() if linux is None else linux * 1024
    for folder, limit, used, cache in _CGROUPS:
        bound = _number(folder / limit)
        if bound is not None:
            reclaimable = _fields(folder / "memory.stat").get(cache, 0)
            free = min(free, bound - (_number(folder / used) or 0) + reclaimable)
    return max(0, free)


# a container sees its own limits here: version 2 of the interface, then version 1
_CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def _half_of_physical() -> int:
    """A guess at what is free where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError):  # no such call or name on this system
        return _DEFAULT_KV_LIMIT * _DEFAULT_KV_SHARE


def weight_bytes(spec: ModelSpec, precision: Precision = "float32") -> int:
    """Memory that the engine keeps a model's weights in."""
    shapes = tensor_shapes(spec)
    if precision in _HALVES:  # but for the norms' weights, which are few
        return sum(math.prod(shape) * (_FLOAT32_BYTES if _is_norm(name) else 2) for name, shape in shapes.items())
    total = 0
    for name, shape in shapes.items():
        # the embedding is a lookup table in float32; a tied one is a matrix beside that
        if len(shape) == 1 or name == EMBEDDING:
            total += math.prod(shape) * _FLOAT32_BYTES
        if len(shape) == 2 and (name != EMBEDDING or spec.tie_embeddings):
            total += _matrix_bytes(shape[0], shape[1], precision)
    return total


def step_weight_bytes(spec: ModelSpec, precision: Precision = "float32") -> int:
    """What a step reads of the weights: all but the embedding, where that is a lookup table and nothing else."""
    halves = precision in _HALVES
    if halves and spec.tie_embeddings:
        return weight_bytes(spec, precision)
    return weight_bytes(spec, precision) - spec.vocab_size * spec.hidden_size * (2 if halves else _FLOAT32_BYTES)


def _is_norm(name: str) -> bool:
    return name.endswith("norm.weight")


def _matrix_bytes(rows: int, columns: int, precision: Precision) -> int:
    if precision == "int8":
        return rows * (-(-columns // _INT8_COLUMNS) * _INT8_COLUMNS + _INT8_ROW_BYTES)
    return rows * columns * _FLOAT32_BYTES


def _fields(path: Path) -> dict[str, int]:
    """``name number ...`` lines of a kernel file; empty where there is none."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdecimal()}


def _number(path: Path) -> int | None:
    """The number in a control file; None where there is no file, or no number (``max`` means no limit)."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def human(size: int) -> str:
    """A number of bytes for people."""
    amount = float(size)
    for unit in ("B", "KB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.2f} GB"
