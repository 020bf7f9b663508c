"""What a load generator says of one load, read from its own file; and whether two of them say the same."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

__all__ = ["BOUNDS", "Figures", "Unreadable", "differences", "median_of", "of_aiperf", "of_orchestra", "of_vllm"]


class Unreadable(Exception):
    """A file of results lacks a figure, or tells of calls that had no answer. The message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Output tokens a second, and of the calls' latencies the median and the 95th percentile, in milliseconds.

    TTFT is the time to the first token; TPOT that from the first token to the last, over the tokens between.
    """

    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    tpot_p50_ms: float
    tpot_p95_ms: float


BOUNDS: Mapping[str, float] = {
    "tokens_per_s": 0.05,
    "ttft_p50_ms": 0.05,
    "tpot_p50_ms": 0.05,
    "ttft_p95_ms": 0.10,
    "tpot_p95_ms": 0.10,
}
"""By how much of the other's figure two generators may differ."""


def differences(ours: Figures, other: Figures) -> dict[str, float]:
    """Return how much more ours says, as a share of what the other does."""
    return {name: getattr(ours, name) / getattr(other, name) - 1 for name in BOUNDS}


def median_of(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each figure over the rounds, of which there is at least one."""
    values = [asdict(one) for one in rounds]
    return Figures(**{each.name: statistics.median(one[each.name] for one in values) for each in fields(Figures)})


def of_orchestra(told: Mapping[str, Any], calls: int) -> Figures:
    """Read the JSON report of `orchestra bench` at one rate. Raises Unreadable."""
    (point,) = told["points"]
    (one,) = point["classes"].values()
    _require_all(one["answered"], calls)
    ttft, tpot = one["ttft"], one["tpot"]
    return Figures(
        tokens_per_s=point["output_tokens_per_s"],
        ttft_p50_ms=ttft["p50"] * 1000,
        ttft_p95_ms=ttft["p95"] * 1000,
        tpot_p50_ms=tpot["p50"] * 1000,
        tpot_p95_ms=tpot["p95"] * 1000,
    )


def of_vllm(told: Mapping[str, Any], calls: int) -> Figures:
    """Read the result file of vLLM's serving benchmark, with percentiles 50 and 95. Raises Unreadable."""
    _require_all(told["completed"], calls)
    return Figures(
        tokens_per_s=told["output_throughput"],
        ttft_p50_ms=told["p50_ttft_ms"],
        ttft_p95_ms=told["p95_ttft_ms"],
        tpot_p50_ms=told["p50_tpot_ms"],
        tpot_p95_ms=told["p95_tpot_ms"],
    )


def of_aiperf(told: Mapping[str, Any], calls: int) -> Figures:
    """Read AIPerf's ``profile_export_aiperf.json``. Its inter-token latency is what others call TPOT.

    Raises Unreadable.
    """
    _require_all(told["request_count"]["avg"], calls)
    ttft, tpot = told["time_to_first_token"], told["inter_token_latency"]
    return Figures(
        tokens_per_s=told["output_token_throughput"]["avg"],
        ttft_p50_ms=ttft["p50"],
        ttft_p95_ms=ttft["p95"],
        tpot_p50_ms=tpot["p50"],
        tpot_p95_ms=tpot["p95"],
    )


def _require_all(answered: float, calls: int) -> None:
    if answered != calls:
        raise Unreadable(f"{answered:g} of {calls} calls were answered")
