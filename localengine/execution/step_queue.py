"""Any runner as one whose steps are submitted and collected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from orchestra.localengine.step import OverlappingRunner, RowInput, RowOutput, StepRunner

__all__ = ["StepQueue"]


class StepQueue:
    """The steps of ``runner``, by the rules of :class:`~orchestra.localengine.step.OverlappingRunner`.

    A runner that is none computes a step when it is submitted; ``overlaps`` tells.
    """

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._overlapping = runner if isinstance(runner, OverlappingRunner) else None
        self.overlaps = self._overlapping is not None

    def submit(self, rows: Sequence[RowInput], abandon: Callable[[], bool] | None = None) -> object:
        """Start a step, and return what `collect` takes. Raises what the runner raises."""
        if self._overlapping is not None:
            return self._overlapping.submit(rows, abandon)
        return self._runner.run(rows, abandon)

    def collect(self, step: object) -> list[RowOutput]:
        """Wait for a step, and return its outputs."""
        if self._overlapping is not None:
            return self._overlapping.collect(step)
        return cast("list[RowOutput]", step)
