"""What is tuned: the operations, the shapes of models that we know, and the launches that are tried for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from orchestra.kernels.launch_table import LaunchConfig
from orchestra.kernels.tuning.attention import decode_problem, extend_problem
from orchestra.kernels.tuning.elementwise import activation_problem, norm_problem, rope_problem, sampling_problem
from orchestra.kernels.tuning.search import Problem

__all__ = ["OPERATIONS", "TuningCase", "tuning_cases"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningCase:
    """One operation and shape, which becomes a row of the table."""

    op: str
    shape: Mapping[str, int]
    candidates: tuple[LaunchConfig, ...]
    problem: Callable[[torch.device, Sequence[int]], Problem]
    """Makes a problem of a size; what a size is depends on the operation."""
    checked: tuple[int, ...]
    """The size at which a candidate is checked: the reference computes one head and row at a time."""
    timed: tuple[tuple[int, ...], ...]
    """The sizes at which it is timed."""
    compiled: str
    """The name of an `AotCase` that is this one with another launch."""


def tuning_cases() -> Iterator[TuningCase]:
    """Yield all cases, those of an operation one after the other."""
    for one in _CASES.values():
        yield from one()


def _launches(warps: Sequence[int], stages: Sequence[int], **blocks: Sequence[int]) -> tuple[LaunchConfig, ...]:
    """Every combination."""
    return tuple(
        LaunchConfig(blocks=dict(zip(blocks, sizes, strict=True)), num_warps=warp, num_stages=stage)
        for *sizes, warp, stage in product(*blocks.values(), warps, stages)
    )


def _decode() -> Iterator[TuningCase]:
    # sizes: rows, and the context of each
    models = {64: "head=64 group=4", 128: "head=128 group=4", 256: "head=256 group=2"}
    for key_bytes, suffix in ((1, " bf16 float8"), (2, " bf16"), (4, " fp32")):
        for head_dim, model in models.items():
            if (key_bytes == 1 and head_dim == 64) or key_bytes == 4:  # of these types, others are compiled
                model = "head=64 group=3"
            yield TuningCase(
                op="attention.decode",
                shape={"key_bytes": key_bytes, "head_dim": head_dim},
                candidates=_launches((2, 4, 8), (2, 3, 5), BLOCK_N=(16, 32, 64, 128)),
                problem=partial(decode_problem, head_dim=head_dim, key_bytes=key_bytes),
                checked=(3, 150),
                timed=((1, 32768), (64, 2048)),
                compiled=f"attention.decode {model}{suffix}",
            )


def _extend() -> Iterator[TuningCase]:
    # sizes: runs, where each begins, and its queries
    for head_dim, group in ((64, 4), (128, 4), (256, 2)):
        yield TuningCase(
            op="attention.extend",
            shape={"head_dim": head_dim},
            candidates=_launches((4, 8), (2, 3), BLOCK_M=(32, 64, 128), BLOCK_N=(32, 64, 128)),
            problem=partial(extend_problem, head_dim=head_dim),
            checked=(2, 70, 40),
            timed=((1, 0, 2048), (4, 1024, 512)),
            compiled=f"attention.extend head={head_dim} group={group} bf16 rows=64",
        )


def _norm() -> Iterator[TuningCase]:
    for hidden in (1024, 2048, 4096, 8192):  # sizes: rows
        yield TuningCase(
            op="norm",
            shape={"hidden": hidden},
            candidates=_launches((1, 2, 4, 8, 16), (1,)),
            problem=partial(norm_problem, hidden=hidden),
            checked=(3,),
            timed=((64,), (2048,)),
            compiled=f"add_rms_norm hidden={576 if hidden == 1024 else min(hidden, 4096)} bf16",
        )


def _activation() -> Iterator[TuningCase]:
    for width in (1536, 8192, 14336):  # sizes: rows
        yield TuningCase(
            op="activation",
            shape={"width": width},
            candidates=_launches((2, 4, 8), (1,), BLOCK=(512, 1024, 2048, 4096)),
            problem=partial(activation_problem, width=width),
            checked=(3,),
            timed=((64,), (2048,)),
            compiled=f"silu_mul width={width} bf16",
        )


def _rope() -> Iterator[TuningCase]:
    for head_dim, heads in ((64, "32/8"), (128, "32/8"), (256, "8/4")):  # sizes: tokens
        yield TuningCase(
            op="rope_kv",
            shape={"head_dim": head_dim},
            candidates=_launches((1, 2, 4), (1,), HEADS=(1, 2, 4, 8, 16)),
            problem=partial(rope_problem, head_dim=head_dim),
            checked=(3,),
            timed=((64,), (2048,)),
            compiled=f"rope_kv heads={heads} head={head_dim} bf16",
        )


def _sampling() -> Iterator[TuningCase]:
    for vocab, known in ((65536, 49152), (131072, 128256), (262144, 128256)):  # sizes: rows
        yield TuningCase(
            op="sampling",
            shape={"vocab": vocab},
            candidates=_launches((4, 8, 16), (1, 2), BLOCK=(1024, 2048, 4096, 8192)),
            problem=partial(sampling_problem, vocab=vocab),
            checked=(3,),
            timed=((1,), (64,)),
            compiled=f"sample filtered race vocab={known} fp32",
        )


_CASES: Mapping[str, Callable[[], Iterator[TuningCase]]] = {
    "attention.decode": _decode,
    "attention.extend": _extend,
    "norm": _norm,
    "activation": _activation,
    "rope_kv": _rope,
    "sampling": _sampling,
}
OPERATIONS = tuple(_CASES)
