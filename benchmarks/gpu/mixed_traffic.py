"""Interactive requests among endless bulk work: times to the first token and between tokens, alone and together.

The phases are those of ``make bench-classes``, shorter, on a larger model: what one class loses to the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import mixed_classes

from gpu.engines import open_engine
from gpu.figures import Figure
from gpu.lab import Lab
from orchestra.localengine import EngineConfig
from orchestra.localengine.settled_config import SettledConfig

__all__ = ["run"]

_MODEL = "1B"
_CONFIG = SettledConfig(
    max_num_seqs=64, step_tokens=2048, interactive_slots=8, ttft_target_ms=50.0, tpot_target_ms=30.0
)
_LOAD = mixed_classes.Load(arrivals=60, per_second=12.0, prompt=256, output=64, bulk=80, warm_up=1.5)
_TINY = mixed_classes.Load(arrivals=2, per_second=50.0, prompt=8, output=3, bulk=2, warm_up=0.02)
_LONGEST = 600  # tokens of a bulk request and its output, rounded up


def run(lab: Lab) -> Iterator[Figure]:
    """Measure interactive requests alone, bulk alone, and both."""
    results: dict[str, dict[str, Any]] = {}
    names = ("alone", "bulk", "classes")
    yield from lab.attempts([(f"phase {name!r}", partial(_phase, lab, name, results)) for name in names])


def _phase(lab: Lab, name: str, results: dict[str, dict[str, Any]]) -> Iterator[Figure]:
    spec = lab.model(_MODEL)
    load, config = (_TINY, SettledConfig.on_cpu(EngineConfig())) if lab.rehearsal else (_LOAD, _CONFIG)
    engine = open_engine(lab, spec, config, tokens=(config.max_num_seqs + 1) * _LONGEST)
    setting = mixed_classes.SETTINGS[name]

    async def measured() -> mixed_classes.Measured:
        async with asyncio.timeout(lab.time_left):
            return await mixed_classes.measure(engine, setting, load, 1)

    try:
        figures = results[name] = asyncio.run(measured()).figures()
    except TimeoutError:
        yield Figure(what=f"phase {name!r}", note="left out: it was not done in time")
        return
    who = "interactive alone" if name == "alone" else "interactive among bulk"
    if setting.interactive:
        alone = results.get("alone") if name != "alone" else None
        for key, told in (("ttft_p50_ms", "TTFT p50"), ("ttft_p95_ms", "TTFT p95"), ("tpot_p95_ms", "TPOT p95")):
            note = f"{figures[key] / alone[key]:.2f} x alone" if alone and alone[key] else ""
            yield Figure(what=f"{who} {_MODEL}, {told}", value=figures[key], unit="ms", note=note)
    if setting.bulk:
        speed = figures["bulk_output_per_s"]
        before = results.get("bulk", {}).get("bulk_output_per_s") if name != "bulk" else None
        note = f"{speed / before:.0%} of alone" if before else ""
        what = "bulk alone" if name == "bulk" else "bulk beside interactive"
        yield Figure(what=f"{what} {_MODEL}", value=speed, unit="tokens/s", note=note)
