"""The engine's settings once its device is known: what was left open is filled in."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from orchestra.localengine.config import EngineConfig

__all__ = ["SettledConfig"]

_GIB = 1 << 30
_FLOAT32_BYTES = 4
_LOGITS = 3  # copies of a step's logits, held at once where a prompt's own probabilities are asked for
_SHARE = 8  # a step's logits take at most an eighth of the memory that weights leave


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledConfig(EngineConfig):
    """Settings in which nothing is left open that depends on the device. What was set stays as it was."""

    max_num_seqs: int
    step_tokens: int
    interactive_slots: int

    @classmethod
    def on_cpu(cls, config: EngineConfig) -> Self:
        """Sizes for a small model on a few cores, where a row more takes its time."""
        slots = _given(config.max_num_seqs, 16)
        kept = min(2, slots - 1)
        return cls._of(config, slots, max(256, slots), kept)

    @classmethod
    def on_gpu(cls, config: EngineConfig, *, free: int, total: int, vocab_size: int) -> Self:
        """Sizes for a GPU of ``total`` bytes, of which ``free`` are left beside a model's weights.

        256 requests are as many as a recorded step has. Steps of 2,048 tokens, or 8,192 from 70 GiB on, are what
        vLLM's server takes (its `EngineArgs.get_batch_defaults`). They are halved as long as their logits would
        take too much of what is free: those of every token may be asked for, and the engine keeps room for that.
        """
        slots = _given(config.max_num_seqs, min(256, _given(config.step_tokens, 256)))
        tokens = 8192 if total >= 70 * _GIB else 2048
        while tokens > 256 and tokens * vocab_size * _FLOAT32_BYTES * _LOGITS > free // _SHARE:
            tokens //= 2
        return cls._of(config, slots, max(tokens, slots), min(slots - 1, max(2, slots // 8)))

    @classmethod
    def _of(cls, config: EngineConfig, max_num_seqs: int, step_tokens: int, interactive_slots: int) -> Self:
        given: dict[str, Any] = {field.name: getattr(config, field.name) for field in fields(EngineConfig)}
        given["max_num_seqs"] = max_num_seqs
        given["step_tokens"] = _given(config.step_tokens, step_tokens)
        given["interactive_slots"] = _given(config.interactive_slots, interactive_slots)
        return cls(**given)


def _given(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
