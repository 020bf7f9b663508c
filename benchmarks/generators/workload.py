"""The load that every generator sends."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``calls`` streamed chats at ``rate`` a second, evenly apart, all of one length in tokens.

    ``warm_up``: calls at the beginning that our generator leaves out; it sends them in addition to ``calls``. The
    others have their own: vLLM's makes one call first.
    """

    rate: float
    calls: int
    prompt_tokens: int
    output_tokens: int
    warm_up: int

    @property
    def seconds(self) -> float:
        """How long the calls come that count."""
        return self.calls / self.rate
