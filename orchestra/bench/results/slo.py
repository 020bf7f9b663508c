"""What is promised to interactive calls."""

from __future__ import annotations

from dataclasses import dataclass

from orchestra.bench.results.measurement import Ended, Measurement
from orchestra.durations import format_duration, parse_duration
from orchestra.errors import InputError
from orchestra.policies.traffic import TrafficClass

__all__ = ["Slo"]

DEFAULT_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level objective: of interactive calls, at least ``share`` are answered within the bounds.

    Seconds: ``ttft`` to the first token, ``tpot`` per token after it (the mean of a call), ``e2e`` in all. Bulk is
    promised no time: a bulk call is good when it is answered.
    """

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    share: float = DEFAULT_SHARE

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Read ``ttft=500ms,tpot=50ms,e2e=10s,share=95%``, of which one bound is needed. Raises InputError."""
        bounds: dict[str, float] = {}
        share = DEFAULT_SHARE
        for part in filter(None, (part.strip() for part in text.split(","))):
            key, _, value = (piece.strip() for piece in part.partition("="))
            try:
                if key == "share":
                    share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
                elif key in ("ttft", "tpot", "e2e") and key not in bounds:
                    bounds[key] = parse_duration(value, needs_unit=True)
                else:
                    raise ValueError("there are ttft, tpot, e2e and share, each once")
            except ValueError as error:
                raise InputError(f"the SLO {text!r}: {part!r}: {error}") from None
        if not 0 < share <= 1:
            raise InputError(f"the SLO {text!r}: a share is above 0 and up to 100%, like ttft=500ms,share=95%")
        if not bounds:
            raise InputError(f"the SLO {text!r} bounds nothing; write it like ttft=500ms,tpot=50ms,share=95%")
        return cls(**bounds, share=share)

    def met_by(self, call: Measurement) -> bool:
        """Return whether a call was answered as promised.

        Where several tokens came at once, their TPOT is not known: the whole time, shared out, stands for it. One
        token alone has none to keep.
        """
        if call.ended is not Ended.ANSWERED:
            return False
        if call.traffic is TrafficClass.BULK:
            return True
        if self.ttft is not None and (call.ttft is None or call.ttft > self.ttft):
            return False
        tpot = call.e2e / call.shown_tokens if call.came_at_once else call.tpot
        if self.tpot is not None and tpot is not None and tpot > self.tpot:
            return False
        return self.e2e is None or call.e2e <= self.e2e

    def __str__(self) -> str:
        bounds = {"ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e}
        told = [f"{name} <= {format_duration(bound)}" for name, bound in bounds.items() if bound is not None]
        return f"{', '.join(told)} for {self.share * 100:.4g}% of interactive calls"
