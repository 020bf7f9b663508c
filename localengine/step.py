"""What passes between the scheduler and the runner in one step. Plain data: no torch, no time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestra.localengine.request import SamplingParams

__all__ = ["RowInput", "RowOutput", "StepRunner"]


@dataclass(frozen=True, slots=True)
class RowInput:
    """One request's share of a step.

    ``token_ids`` are computed at positions ``start .. start + len(token_ids)``; their keys and values go to the
    blocks of ``block_table`` (position p lives in block ``block_table[p // block_size]``), where positions
    before ``start`` already are. ``sampling`` is None where no token is drawn (an unfinished prefill); else the
    row after the last position is sampled. ``noise_key`` seeds the draw, which depends on nothing else but the
    position and the token.
    """

    request_id: int
    epoch: int
    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    sampling: SamplingParams | None
    noise_key: int


@dataclass(frozen=True, slots=True)
class RowOutput:
    """The token drawn for a row that was sampled. A result whose epoch is stale is dropped."""

    request_id: int
    epoch: int
    token_id: int


class StepRunner(Protocol):
    """The device-dependent part of the engine: all that the step loop asks of it.

    One thread calls ``run`` at a time. The rows' block tables are the caller's responsibility: a runner neither
    allocates nor frees blocks, and two rows of one step never write to the same block.
    """

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV pool; block ids are ``0 .. num_blocks - 1``."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens that a block holds."""
        ...

    def run(self, rows: Sequence[RowInput]) -> list[RowOutput]:
        """Compute one step; one output for each row with ``sampling``, in the order of ``rows``.

        A row that breaks the rules of :class:`RowInput` raises ValueError before anything is written.
        """
        ...

    def close(self) -> None:
        """Release weights and pool. Closing twice is harmless; ``run`` afterwards raises RuntimeError."""
        ...
