"""What a run of the demo recorded, and the figures that follow from it. Nothing here runs or draws anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from orchestra.bench.results.quantiles import percentile

__all__ = ["PROMISED_RATIO", "Answer", "BulkLoad", "Figures", "Recording", "Step", "figures_of"]

PROMISED_RATIO = 3.0
"""The most that p95 TTFT beside a full bulk load may be, as a multiple of its value alone."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One interactive question and its answer. Seconds; ``intended`` counts from the start of the run.

    ``ttft`` and ``total`` count from the intended instant, not from when the question got out, so that a client
    that fell behind cannot flatter the figures.
    """

    question: str
    text: str
    intended: float
    ttft: float
    total: float
    tokens: int

    @property
    def tpot(self) -> float | None:
        """Mean seconds per output token after the first; None with fewer than two."""
        return (self.total - self.ttft) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine: when it began, in seconds from the start of the run, how long it took, and the rows
    of each class that it computed."""

    at: float
    seconds: float
    interactive: int
    bulk: int


@dataclass(frozen=True, slots=True)
class BulkLoad:
    """The bulk job: ``answered`` of ``lines`` succeeded, with ``output_tokens`` between ``start`` and ``end``."""

    lines: int
    answered: int
    output_tokens: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole run. ``window`` is when interactive questions ran beside the bulk job."""

    model: str
    threads: int
    seed: int
    rate: float
    alone: Sequence[Answer]
    loaded: Sequence[Answer]
    bulk: BulkLoad
    window: tuple[float, float]
    steps: Sequence[Step] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds, ratios, tokens a second, and rows."""

    ttft_median_alone: float
    ttft_p95_alone: float
    ttft_median_loaded: float
    ttft_p95_loaded: float
    ttft_median_ratio: float
    ttft_p95_ratio: float
    tpot_median_alone: float
    tpot_median_loaded: float
    bulk_tokens_per_second: float
    bulk_rows_mean: float
    rows_most: int

    @property
    def promise_kept(self) -> bool:
        return self.ttft_p95_ratio <= PROMISED_RATIO

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "promised_ratio": PROMISED_RATIO, "promise_kept": self.promise_kept}


def figures_of(recording: Recording) -> Figures:
    """Compute every figure that the demo reports."""
    alone = [answer.ttft for answer in recording.alone]
    loaded = [answer.ttft for answer in recording.loaded]
    start, end = recording.window
    beside = [step for step in recording.steps if start <= step.at < end]
    busy = sum(step.seconds for step in beside)
    bulk = recording.bulk
    return Figures(
        ttft_median_alone=median(alone),
        ttft_p95_alone=percentile(alone, 0.95),
        ttft_median_loaded=median(loaded),
        ttft_p95_loaded=percentile(loaded, 0.95),
        ttft_median_ratio=median(loaded) / median(alone),
        ttft_p95_ratio=percentile(loaded, 0.95) / percentile(alone, 0.95),
        tpot_median_alone=_median_tpot(recording.alone),
        tpot_median_loaded=_median_tpot(recording.loaded),
        bulk_tokens_per_second=bulk.output_tokens / (bulk.end - bulk.start),
        bulk_rows_mean=sum(step.bulk * step.seconds for step in beside) / busy if busy else 0.0,
        rows_most=max((step.interactive + step.bulk for step in recording.steps), default=0),
    )


def _median_tpot(answers: Sequence[Answer]) -> float:
    known = [tpot for answer in answers if (tpot := answer.tpot) is not None]
    return median(known) if known else float("nan")
