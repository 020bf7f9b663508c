"""How fast an engine is: its places, and what a step takes with so many of them in use."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestra.durations import parse_duration
from orchestra.errors import InputError

if TYPE_CHECKING:
    from orchestra.plan.report import Plan

__all__ = ["EngineSpeed"]

_PREFILL = 1000.0


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """``slots`` requests run at once. ``steps`` are pairs of how many run and the seconds of a step, both rising;
    in between it goes straight. ``prefill`` is how many tokens of a prompt are computed in a second. ``text`` is
    how it was written."""

    slots: int
    steps: Sequence[tuple[int, float]]
    prefill: float
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> EngineSpeed:
        """Read ``slots:8,step:20ms,row:1ms,prefill:2000``.

        A step takes ``step``, and ``row`` more for each request in it, which may be left out, as may ``prefill``
        (1,000). Raises InputError.
        """
        told: dict[str, str] = dict(part.strip().partition(":")[::2] for part in text.split(","))
        try:
            slots = int(told.pop("slots"))
            step, row = parse_duration(told.pop("step")), told.pop("row", None)
            more = 0.0 if row is None else parse_duration(row)
            prefill = float(told.pop("prefill", _PREFILL))
            if not told and 1 <= slots <= 100_000 and 0 < prefill < 1e9:
                return cls(slots, ((1, step + more), (slots, step + more * slots)), prefill, text)
        except (KeyError, ValueError):
            pass
        raise InputError(f"{text!r} is no speed of an engine: write slots:8,step:20ms,row:1ms,prefill:2000")

    @classmethod
    def of_plan(cls, plan: Plan, slots: int | None) -> EngineSpeed:
        """That of a plan, with at most ``slots`` requests at once (None: as many as fit)."""
        found = plan.performance
        slots = max(1, found.most if slots is None else min(slots, found.most))
        steps = [(one.batch, one.decode.seconds) for one in found.operations]
        prompts = sorted(size.prompt for size in found.mix.requests)
        prompt = prompts[(len(prompts) - 1) // 2]
        return cls(slots, steps, prompt / found.first_token_p50, f"{plan.name} on {plan.device.name}")

    def step(self, running: int) -> float:
        """Return the seconds of a step with so many requests."""
        steps = self.steps
        above = min(max(1, bisect_left(steps, (running, 0.0))), len(steps) - 1)
        if above == 0:
            return steps[0][1]
        (x0, y0), (x1, y1) = steps[above - 1], steps[above]
        return y0 if x1 == x0 else max(y0, y0 + (y1 - y0) * (running - x0) / (x1 - x0))
