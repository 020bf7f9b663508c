"""How each Triton kernel is launched: block sizes, warps and pipeline stages, by architecture and shape.

A plain table, no autotuner: the same call is launched alike in every process, so results repeat, the first call
costs nothing more, and what is compiled ahead of time is what runs. A row holds where every bound that it names is
at least the shape's number, and of an operation's rows the first that holds is taken.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["ARCHITECTURES", "LaunchConfig", "arch_of", "launch_config"]

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "interpreter")
_ANY = "any"  # the rows of architectures that have none of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """``blocks`` are the kernel's constexpr block sizes by name, ``num_warps`` and ``num_stages`` the compiler's.

    A launch is ``kernel[grid](..., **config.blocks, **config.options)``.
    """

    blocks: Mapping[str, int] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2

    @property
    def options(self) -> Mapping[str, int | bool]:
        """What the compiler is told. Fused multiply-adds are asked for by name: Triton's default is to change."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": True}


@dataclass(frozen=True, slots=True)
class _Row:
    """``config``, for shapes whose numbers are at most those of ``bounds``."""

    bounds: Mapping[str, int]
    config: LaunchConfig

    def holds(self, shape: Mapping[str, int]) -> bool:
        return all(shape[name] <= bound for name, bound in self.bounds.items())


def _row(warps: int, stages: int, blocks: Mapping[str, int], **bounds: int) -> _Row:
    return _Row(bounds, LaunchConfig(blocks=MappingProxyType(dict(blocks)), num_warps=warps, num_stages=stages))


# Each row: warps, stages, block sizes, and up to which shape. Not yet tuned on a GPU.
_TABLE: Mapping[str, Mapping[str, tuple[_Row, ...]]] = {
    # BLOCK_N tokens of the context a tile. Behind a block table, 2 to 4 stages buffer no more than one (measured).
    "attention.decode": {
        _ANY: (
            _row(4, 3, {"BLOCK_N": 64}, head_dim=64),
            _row(4, 3, {"BLOCK_N": 32}, head_dim=128),
            _row(4, 2, {"BLOCK_N": 16}),
        ),
        # five stages are the least that hold two tiles of keys and values
        "sm_90": (
            _row(4, 5, {"BLOCK_N": 64}, head_dim=64),
            _row(4, 5, {"BLOCK_N": 32}, head_dim=128),
            _row(4, 3, {"BLOCK_N": 32}),
        ),
        "sm_100": (
            _row(4, 5, {"BLOCK_N": 64}, head_dim=64),
            _row(4, 5, {"BLOCK_N": 32}, head_dim=128),
            _row(4, 3, {"BLOCK_N": 32}),
        ),
        "interpreter": (_row(1, 1, {"BLOCK_N": 16}),),
    },
    # BLOCK_M rows (queries times the heads of a group) and BLOCK_N tokens a tile; wgmma begins at 64 rows.
    "attention.extend": {
        _ANY: (
            _row(4, 2, {"BLOCK_M": 64, "BLOCK_N": 64}, head_dim=64),
            _row(4, 2, {"BLOCK_M": 64, "BLOCK_N": 32}, head_dim=128),
            _row(4, 2, {"BLOCK_M": 32, "BLOCK_N": 32}),
        ),
        "sm_90": (
            _row(4, 3, {"BLOCK_M": 64, "BLOCK_N": 64}, head_dim=128),
            _row(4, 2, {"BLOCK_M": 64, "BLOCK_N": 32}),
        ),
        "sm_100": (
            _row(4, 3, {"BLOCK_M": 64, "BLOCK_N": 64}, head_dim=128),
            _row(4, 2, {"BLOCK_M": 64, "BLOCK_N": 32}),
        ),
        "interpreter": (_row(1, 1, {"BLOCK_M": 16, "BLOCK_N": 16}),),
    },
    # BLOCK tokens of the vocabulary a pass
    "sampling": {
        _ANY: (_row(8, 2, {"BLOCK": 4096}),),
        "interpreter": (_row(1, 1, {"BLOCK": 64}),),
    },
    # a row a program, held in registers as a whole; about 16 elements a thread
    "norm": {
        _ANY: (
            _row(2, 1, {}, hidden=1024),
            _row(4, 1, {}, hidden=2048),
            _row(8, 1, {}, hidden=8192),
            _row(16, 1, {}),
        ),
    },
    # BLOCK elements of a row a program
    "activation": {
        _ANY: (_row(4, 1, {"BLOCK": 1024}),),
        "interpreter": (_row(1, 1, {"BLOCK": 64}),),
    },
    # HEADS heads of a token a program, so that a thread loads 16 bytes of each half of a head
    "rope_kv": {
        _ANY: (
            _row(1, 1, {"HEADS": 8}, head_dim=64),
            _row(2, 1, {"HEADS": 8}, head_dim=128),
            _row(2, 1, {"HEADS": 4}),
        ),
        "interpreter": (_row(1, 1, {"HEADS": 2}),),
    },
}


@functools.cache
def launch_config(op: str, arch: str, **shape: int) -> LaunchConfig:
    """Return how to launch ``op`` (as ``"attention.decode"``) on ``arch`` for a ``shape`` (as ``head_dim=64``).

    An operation's rows name the numbers that they depend on; others may be given, and do not matter. Raises
    ValueError for an operation or an architecture that is not in the table, and KeyError where a number that a row
    depends on is missing.
    """
    if op not in _TABLE:
        raise ValueError(f"no launch settings for {op!r}; there are those of {', '.join(sorted(_TABLE))}")
    if arch not in ARCHITECTURES:
        raise ValueError(f"unknown architecture {arch!r}; known are {', '.join(ARCHITECTURES)}")
    rows = _TABLE[op].get(arch) or _TABLE[op][_ANY]
    return next(row.config for row in rows if row.holds(shape))


# Architectures without rows of their own go by those with as much shared memory.
_LIKE = {
    "sm_86": "sm_120",
    "sm_87": "sm_80",
    "sm_89": "sm_120",
    "sm_103": "sm_100",
    "sm_110": "sm_100",
    "sm_121": "sm_120",
}


@functools.cache
def arch_of(device: torch.device) -> str:
    """Return the name by which `launch_config` knows a device's architecture; a CPU's is ``interpreter``.

    An NVIDIA GPU newer than the table goes by sm_120's rows, which ask for the least shared memory, and every AMD
    GPU by gfx942's. Raises ValueError for one older than sm_80.
    """
    import torch

    if device.type == "cpu":
        return "interpreter"
    if torch.version.hip is not None:
        return "gfx942"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        name = torch.cuda.get_device_name(device)
        raise ValueError(f"{name} is sm_{major}{minor}; the kernels want sm_80 or newer")
    arch = f"sm_{major}{minor}"
    return arch if arch in ARCHITECTURES else _LIKE.get(arch, "sm_120")
