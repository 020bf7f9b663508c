"""The engine's settings."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

from orchestra.localengine.precision import PRECISIONS, PrecisionSetting

__all__ = ["EngineConfig", "KvSetting", "SchedulerName"]

SchedulerName = Literal["classes", "priority", "fcfs", "static"]
KvSetting = Literal["auto", "float8"]

_LEAST_SEQS = 16  # that any device runs at once where nothing else is said
_MOST_THREADS = 1024  # where the system cannot start as many as asked for, it ends the process


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How much the engine may hold and how long its steps may take.

    What is None suits the device (:class:`~orchestra.localengine.settled_config.SettledConfig` says how).

    ``max_num_seqs``: requests that run at once. More raise throughput and lengthen each step. None: 16 on a CPU,
    256 on a GPU.
    ``step_tokens``: the most tokens that one step computes, at least ``max_num_seqs``. Bounds a step's memory.
    None: 256 on a CPU; on a GPU 2,048, or 8,192 where it has 70 GiB, but less where a step would take too much.
    ``block_size``: tokens in a block of the KV cache. Smaller wastes less, larger is quicker to gather.
    ``kv_bytes``: memory for the KV cache; None derives it from the free memory and the model.
    ``threads``: CPU threads of a step; None leaves torch's own choice.
    ``device``: ``cpu``, ``cuda`` or ``cuda:1`` (AMD's too); ``auto`` is a GPU where there is one that torch and
    Triton can use, unless ``precision`` or ``strict`` ask for a CPU.
    ``precision``: what the matrices are kept in; ``auto`` is float32 on a CPU and bfloat16 on a GPU. ``int8``, on
    a CPU, takes a quarter to a half of the memory and is quicker, but the likeliest token is another in one place
    of seven: measure yours before you use it (`orchestra model info NAME --precision int8 --measure`).
    ``kv_dtype``: what keys and values are kept in; ``auto`` goes with ``precision``. ``float8``, on a GPU
    (NVIDIA's from sm_89 on, AMD's gfx942), takes about half of bfloat16's memory, so that nearly twice as many
    tokens fit. The key and the value of each token and head have a scale of their own.
    ``strict``, on a CPU: the same bits of every logit for a request in any company, however its prompt is divided
    into steps, found in the cache, or computed again. Without it, only the last bits may differ, which decides a
    token where two are equally likely. Each token of a prompt attends by itself for that: one of 512 tokens takes
    1.5 times as long, the part of one with 2,000 before it twice; output tokens take no longer. GPUs are refused:
    their matrix products add up in another order for another number of rows.
    ``ttft_target_ms``: how long a step may become through bulk work while no interactive request is decoding: what
    an interactive request that arrives meanwhile waits at most before its own first step. It mostly waits less, as
    a step of bulk alone is given up for it between two layers, unless that is nearly done. Lower answers sooner,
    higher serves more bulk.
    ``tpot_target_ms``: how long a step may become while an interactive request is decoding: the time between its
    tokens, on average. Steps are planned shorter by some of what their prediction typically misses, and shorter
    still for a request that slow ones have set back, but never shorter than 1.5 times the fixed cost of a step, as
    measured: on a machine too slow for the target, that would stop bulk and gain next to nothing.
    ``bulk_min_share``: the share of the computed tokens that bulk gets under endless interactive load; with 0 it
    may get none.
    ``interactive_slots``: of ``max_num_seqs``, those that bulk never takes. None: 2, or an eighth on a GPU.
    ``interactive_cache``: the share of the KV cache that bulk never takes, neither from interactive requests that
    run nor from what is kept of earlier ones. None: as of the slots.
    ``prefix_cache``: whether what was computed of a prompt is kept for others that begin alike, for as long as
    there is room.
    ``max_waiting``: requests of one class that may wait; one more raises EngineBusy. None is unbounded.
    ``scheduler``: who is served when. ``classes`` is the one to use: all that is said above about interactive and
    bulk is its doing. The others are there for comparison, and reserve, bound and share nothing: ``priority``
    admits interactive requests first, ``fcfs`` all in order of arrival, and ``static`` computes one batch to its
    end before it takes the next (see `orchestra.localengine.scheduling.schedulers`).

    Raises ValueError, naming the setting, where a value is outside its range.
    """

    max_num_seqs: int | None = None
    step_tokens: int | None = None
    block_size: int = 16
    kv_bytes: int | None = None
    threads: int | None = None
    device: str = "auto"
    precision: PrecisionSetting = "auto"
    kv_dtype: KvSetting = "auto"
    strict: bool = False
    ttft_target_ms: float = 200.0
    tpot_target_ms: float = 150.0
    bulk_min_share: float = 0.0
    interactive_slots: int | None = None
    interactive_cache: float | None = None
    prefix_cache: bool = True
    max_waiting: int | None = None
    scheduler: SchedulerName = "classes"

    def __post_init__(self) -> None:
        _require_count("block_size", self.block_size)
        for name in ("max_num_seqs", "step_tokens", "kv_bytes", "threads", "max_waiting"):
            if getattr(self, name) is not None:
                _require_count(name, getattr(self, name))
        if self.threads is not None and self.threads > _MOST_THREADS:
            raise ValueError(f"threads must be at most {_MOST_THREADS}, not {self.threads}")
        for name in ("ttft_target_ms", "tpot_target_ms"):
            value = getattr(self, name)
            if not (_is_number(value) and math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a number of milliseconds above 0, not {value!r}")
        if not (_is_number(self.bulk_min_share) and 0 <= self.bulk_min_share < 1):
            raise ValueError(f"bulk_min_share must be at least 0 and below 1, not {self.bulk_min_share!r}")
        share = self.interactive_cache
        if share is not None and not (_is_number(share) and 0 <= share < 1):
            raise ValueError(f"interactive_cache must be at least 0 and below 1, not {share!r}")
        for name in ("prefix_cache", "strict"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, not {getattr(self, name)!r}")
        if self.scheduler not in get_args(SchedulerName):
            names = ", ".join(get_args(SchedulerName))
            raise ValueError(f"scheduler must be one of {names}, not {self.scheduler!r}")
        if not isinstance(self.device, str) or not re.fullmatch("auto|cpu|cuda(:[0-9]{1,2})?", self.device):
            raise ValueError(f'device must be "auto", "cpu", "cuda" or "cuda:1", not {self.device!r}')
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {self.precision!r}")
        if self.kv_dtype not in get_args(KvSetting):
            names = ", ".join(get_args(KvSetting))
            raise ValueError(f"kv_dtype must be one of {names}, not {self.kv_dtype!r}")
        self._check_sizes()

    def _check_sizes(self) -> None:
        """What is given goes together on every device: what is not is at least a CPU's there."""
        slots = _LEAST_SEQS if self.max_num_seqs is None else self.max_num_seqs
        if self.step_tokens is not None and self.step_tokens < slots:
            raise ValueError(
                f"step_tokens ({self.step_tokens}) must be at least max_num_seqs ({slots}): "
                "every running request needs a token a step"
            )
        kept = self.interactive_slots
        if kept is None:
            return
        if isinstance(kept, bool) or not isinstance(kept, int):
            raise ValueError(f"interactive_slots must be a whole number, not {kept!r}")
        if not 0 <= kept < slots:
            raise ValueError(
                f"interactive_slots must be from 0 to {slots - 1} (one less than max_num_seqs), not {kept}"
            )


def _require_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
