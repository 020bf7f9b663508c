"""The in-process engine: continuous batching, paged KV cache, two traffic classes inside.

::

    from orchestra.localengine import EngineConfig, LocalEngine, SamplingParams

    async with LocalEngine.load("smollm2-135m", EngineConfig(max_num_seqs=8)) as engine:
        answer = await engine.complete("Once upon a time", SamplingParams(max_tokens=32, temperature=0))
"""

from __future__ import annotations

from orchestra.localengine.config import EngineConfig
from orchestra.localengine.engine import LocalEngine
from orchestra.localengine.request import Chat, Completion, Delta, SamplingParams, Timing, Usage
from orchestra.localengine.sampling_params import Structure

__all__ = [
    "Chat",
    "Completion",
    "Delta",
    "EngineConfig",
    "LocalEngine",
    "SamplingParams",
    "Structure",
    "Timing",
    "Usage",
]
