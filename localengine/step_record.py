"""What one step of the engine was like."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step: when it began (``time.monotonic``), how long it took, and what it computed for whom.

    ``interactive`` and ``bulk`` count the rows of each class, prompts included, of ``slots`` that there are;
    ``predicted`` is what the step-time model expected, in seconds. The rest counts the blocks of the KV cache
    while it ran: ``blocks`` in all, of which ``free_blocks`` are held by no request; of these the ``cached`` ones
    keep what was computed for a request of that class. A block that both classes share counts as held by each.
    """

    at: float
    seconds: float
    predicted: float
    interactive: int
    bulk: int
    prefill_tokens: int
    decode_rows: int
    slots: int
    blocks: int
    free_blocks: int
    cached_interactive: int
    cached_bulk: int
    held_interactive: int
    held_bulk: int

    @property
    def occupancy(self) -> float:
        """The share of the slots that had a row."""
        return (self.interactive + self.bulk) / self.slots
