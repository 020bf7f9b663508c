"""The course of a scripted batch, computed from the clock whenever somebody asks: nothing runs meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestra.testing.batch_script import BatchScript

__all__ = ["ENDS", "BatchLife", "Stage"]

ENDS = frozenset({"completed", "expired", "cancelled", "failed"})


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a batch stands: its status in OpenAI's words, the lines answered so far, and when it came to each
    status."""

    status: str
    answered: int
    reached: Mapping[str, float]

    @property
    def ended(self) -> bool:
        return self.status in ENDS


@dataclass(frozen=True, slots=True)
class BatchLife:
    """A batch of ``total`` lines, created at an instant, with ``window`` seconds to end in.

    ``rejected``: its input was refused. ``cancelled_at``: somebody cancelled it.
    """

    script: BatchScript
    total: int
    created_at: float
    window: float
    rejected: bool = False
    cancelled_at: float | None = None

    @property
    def expires_at(self) -> float:
        return self.created_at + self.window

    @property
    def created(self) -> Stage:
        """Where every batch stands when its creation is answered."""
        return Stage("validating", 0, {"validating": self.created_at})

    def cancel(self, now: float) -> BatchLife:
        """Return the life that it has from now on, being cancelled."""
        return self if self.cancelled_at is not None else replace(self, cancelled_at=now)

    def stage(self, now: float) -> Stage:
        """Return where it stands."""
        reached = {status: at for at, status in self._steps() if at <= now}
        status = list(reached)[-1]
        return Stage(status, self._answered(now, status), reached)

    @property
    def _end(self) -> str | None:
        return "failed" if self.rejected else self.script.end

    def _steps(self) -> list[tuple[float, str]]:
        script, end = self.script, self._end
        running_at = self.created_at + script.validating
        over_at = running_at + script.running
        steps = [(self.created_at, "validating"), (running_at, "failed" if end == "failed" else "in_progress")]
        if end in ("completed", "expired"):
            steps += [(over_at, "finalizing"), (over_at + script.finalizing, end)]
        elif end == "cancelled":
            steps += [(over_at, "cancelling"), (over_at + script.cancelling, end)]
        elif end not in (None, "failed"):
            steps += [(over_at, end)]
        stands = end not in ENDS
        if end is None or steps[-1][0] > self.expires_at:
            stands = False
            steps = [step for step in steps if step[0] < self.expires_at]
            steps += [(self.expires_at, "finalizing"), (self.expires_at + script.finalizing, "expired")]
        at = self.cancelled_at
        if at is not None and (stands or at < steps[-1][0]):
            steps = [step for step in steps if step[0] <= at]
            steps += [(at, "cancelling"), (at + script.cancelling, "cancelled")]
        return steps

    def _answered(self, now: float, status: str) -> int:
        script = self.script
        if self._end == "failed":
            return 0
        running_at = self.created_at + script.validating
        stops = [now, self.expires_at, *([] if self.cancelled_at is None else [self.cancelled_at])]
        ran = min(stops) - running_at
        if ran < 0:
            return 0
        wanted = script.answered_of(self.total)
        done = wanted if ran >= script.running else int(wanted * ran / script.running)
        more = script.finishing if status == "cancelled" else 0
        return min(self.total, done + more)
