"""What passes between the scheduler and the runner in one step. Plain data: no torch, no time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from orchestra.localengine.request import SamplingParams

__all__ = [
    "PENDING",
    "DrawExtras",
    "OverlappingRunner",
    "RowInput",
    "RowOutput",
    "StepAbandoned",
    "StepOutOfMemory",
    "StepRunner",
    "TokenScore",
]

PENDING = -1
"""In a row's ``token_ids``: the token that the step before draws for the same request, unknown as yet to the host.
Only an :class:`OverlappingRunner` takes it, in a row of one token."""


@dataclass(frozen=True, slots=True)
class DrawExtras:
    """What a draw takes into account beside the logits and the parameters. Most rows have none.

    ``history`` is all tokens so far, the first ``num_prompt`` of them the prompt's, where a penalty wants them.
    ``banned`` tokens are not drawn. ``allowed`` returns a bit for each token of the vocabulary, the lowest first
    (little-endian words of 32), that is set where the token may be drawn; it may wait for them, and never raises.
    """

    history: Sequence[int] = ()
    num_prompt: int = 0
    banned: Sequence[int] = ()
    allowed: Callable[[], bytes] | None = None


@dataclass(frozen=True, slots=True)
class RowInput:
    """One request's share of a step.

    ``token_ids`` are computed at positions ``start .. start + len(token_ids)``; their keys and values go to the
    blocks of ``block_table`` (position p lives in block ``block_table[p // block_size]``), where positions
    before ``start`` already are. ``sampling`` is None where no token is drawn (an unfinished prefill); else the
    row after the last position is sampled. ``noise_key`` seeds the draw, which depends on nothing else but the
    position and the token. ``targets`` are the tokens that follow at positions ``start + 1 ..`` where their
    log-probabilities are asked for, with the ``num_top`` likeliest in the place of each.
    """

    request_id: int
    epoch: int
    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    sampling: SamplingParams | None
    noise_key: int
    extras: DrawExtras | None = None
    targets: Sequence[int] = ()
    num_top: int = 0


@dataclass(frozen=True, slots=True)
class TokenScore:
    """The log-probability of a token, its rank among all, and (token id, log-probability) of the likeliest."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class RowOutput:
    """The token drawn for a row that was sampled, and what was asked about it and about the row's targets.

    ``token_id`` is None where the row had targets alone. A result whose epoch is stale is dropped.
    """

    request_id: int
    epoch: int
    token_id: int | None
    score: TokenScore | None = None
    targets: tuple[TokenScore, ...] = ()


class StepAbandoned(Exception):
    """A step was given up between two layers, as it was asked to. Nothing of it counts."""


class StepOutOfMemory(Exception):
    """The device had too little memory for a step, and nothing of the step counts.

    The next one may go better if the caller gives ``blocks`` blocks of the KV pool up for good, and says which to
    ``give_up``, before it runs the next: that frees their memory. The runner is of no use if that fails.
    """

    def __init__(self, message: str, *, blocks: int, give_up: Callable[[Collection[int]], None]) -> None:
        super().__init__(message)
        self.blocks = blocks
        self.give_up = give_up


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

    def run(self, rows: Sequence[RowInput], abandon: Callable[[], bool] | None = None) -> list[RowOutput]:
        """Compute one step; one output for each row with ``sampling`` or ``targets``, in the order of ``rows``.

        ``abandon`` is asked between layers, and where it says yes the step ends there with StepAbandoned. What it
        has written by then lies at the positions of its own rows, which nobody reads before they are computed
        anew: the same blocks may be written again, or given to another request, as if it had never run.

        A row that breaks the rules of :class:`RowInput` raises ValueError before anything is written.
        """
        ...

    def close(self) -> None:
        """Release weights and pool. Closing twice is harmless; ``run`` afterwards raises RuntimeError."""
        ...


@runtime_checkable
class OverlappingRunner(StepRunner, Protocol):
    """A runner that computes a step while its caller prepares the next.

    ``run`` is ``collect(submit(...))``. One thread calls both. Steps are collected in the order in which they were
    submitted, each before the second one after it is.
    """

    def submit(self, rows: Sequence[RowInput], abandon: Callable[[], bool] | None = None) -> object:
        """Start a step, and return what ``collect`` takes. Raises what ``run`` raises.

        A row may continue with the token that the step before draws for its request: PENDING stands for that. What
        a row's ``extras`` say must be known, and is not where it depends on that token.
        """
        ...

    def collect(self, step: object) -> list[RowOutput]:
        """Wait for the step, and return what ``run`` would. A step may be collected once."""
        ...
