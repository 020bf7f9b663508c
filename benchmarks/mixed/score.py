"""From what the clients and the provider saw to the figures that are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mixed.scenario import Scenario
from orchestra.policies.rank import nearest_rank

__all__ = ["score"]


def score(
    scenario: Scenario, start: float, provider: Mapping[str, Any], clients: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the figures of one client's run, which may have been several processes.

    ``wait`` is how much later than an unhindered call interactive ones were answered, in seconds, by percentile;
    one that was not answered counts as still waiting at the end. ``served`` counts the calls of both classes that
    the provider let in while use counts: not the burst before, which is the larger the longer a client takes to
    take in the backlog.
    """
    end = start + scenario.seconds
    cut = end + scenario.grace
    calls = [call for client in clients for call in client["interactive"]]
    waits = [max(0.0, (cut if done is None else done) - due - scenario.service) for due, done in calls]
    hits = [(at - start, status, tokens) for at, status, tokens in provider["hits"] if at <= cut]
    used, refused, served = _use(scenario, hits, provider["started"] - start)
    errors: dict[str, int] = {}
    for client in clients:
        for error, count in client["errors"].items():
            errors[error] = errors.get(error, 0) + count
    return {
        "wait": {
            f"p{percent}": round(nearest_rank(waits, percent / 100), 4) if waits else math.nan
            for percent in (50, 95, 99)
        },
        "interactive": {
            "asked": len(calls),
            "answered": sum(done is not None for _, done in calls),
            "failed": sum(client["failed"]["interactive"] for client in clients),
        },
        "bulk": {
            "answered": sum(client["bulk_answered"] for client in clients),
            "failed": sum(client["failed"]["bulk"] for client in clients),
        },
        "refused": {"calls": sum(status == 429 for _, status, _ in hits), "share": round(refused, 4)},
        "used": round(used, 4),
        "served": served,
        "peak_in_flight": provider["peak"],
        "cpu_s": round(sum(client["cpu_s"] for client in clients), 2),
        "handing_over_s": max(client["handing_over_s"] for client in clients),
        "longest_gap_ms": max(client["longest_gap_ms"] for client in clients),
        "memory_mb": sum(client["memory_mb"] for client in clients),
        "errors": errors,
        "waits": [
            [round(due - start, 2), round((cut if done is None else done) - due - scenario.service, 4)]
            for due, done in calls
        ],
    }


def _use(
    scenario: Scenario, hits: Sequence[tuple[float, int | None, float]], tenant_from: float
) -> tuple[float, float, int]:
    """Return the least share of the refill that was used in any window, the largest that was refused, and how
    many calls were let in."""
    used, refused, served = math.inf, 0.0, 0
    for since, until in scenario.windows():
        within = [hit for hit in hits if since <= hit[0] < until]
        passed = [hit for hit in within if hit[1] != 429]
        served += len(passed)
        refill = scenario.factor(since) * (until - since) / 60
        shares = (
            len(passed) / (scenario.requests_per_minute * refill),
            sum(tokens for _, _, tokens in passed) / (scenario.tokens_per_minute * refill),
        )
        used = min(used, max(shares) + _tenant(scenario, since - tenant_from, until - tenant_from))
        counted = within if scenario.settle else hits
        refused = max(refused, sum(hit[1] == 429 for hit in counted) / max(1, len(counted)))
    return used, refused, served


def _tenant(scenario: Scenario, since: float, until: float) -> float:
    """Return the share of the refill that the other tenant took."""
    if scenario.tenant is None:
        return 0.0
    from orchestra.testing import Tenant

    tenant = Tenant(*scenario.tenant)
    return tenant.share * tenant.busy(since, until) / (until - since)
