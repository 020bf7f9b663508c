"""Simulations in little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestra.bench.load.workload import Shape
from orchestra.config import parse_config
from orchestra.lengths import Lengths
from orchestra.simulate.findings import Findings
from orchestra.simulate.generated import Generated, PlannedJob
from orchestra.simulate.outside import Outside
from orchestra.simulate.simulation import Simulation

SHAPE = Shape(Lengths.parse("100"), Lengths.parse("20"))
PRICES = [{"input": 1.0, "output": 4.0}]


def settings(*, kind: str = "openai", limits: Mapping[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """Settings with one provider that needs no key to be simulated, and the model ``fast`` that it serves."""
    one = {"kind": kind, "api_key": "env:NOT_SET_ANYWHERE", "limits": [limits] if limits else [], "prices": PRICES}
    return {"providers": {"one": one}, "models": {"fast": {"routes": ["one/m"]}}, **sections}


def simulated(
    config: Mapping[str, Any],
    outside: Outside | None = None,
    *,
    rate: float = 0.5,
    minutes: float = 10.0,
    jobs: Sequence[str] = (),
    seed: int = 0,
    **options: Any,
) -> Findings:
    """Simulate so many minutes of calls, half of them bulk."""
    planned = [PlannedJob.parse(text) for text in jobs]
    traffic = Generated(
        "fast", rate, SHAPE, SHAPE, 0.5, seconds=60 * minutes, jobs=planned, seed=seed, **options
    ).traffic()
    return Simulation(parse_config(config), traffic, outside or Outside(), seed=seed).run()
