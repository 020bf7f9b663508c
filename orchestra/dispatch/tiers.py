"""Service tiers: what a call costs in one, and when a call leaves one that has no room for it."""

from __future__ import annotations

from orchestra.budget import cost
from orchestra.call import Usage
from orchestra.config import PriceConfig
from orchestra.policies.traffic import TrafficClass

__all__ = ["LONGEST_FLEX", "billed_as", "cost_at_least", "leaves_tier", "tier_cost"]

LONGEST_FLEX = 900.0
"""Seconds that an answer in a flex tier may take: Google documents up to fifteen minutes, and OpenAI advises a
timeout of as many."""

_NO_DEARER = frozenset({None, "auto", "batch", "default", "flex", "on_demand", "standard", "standard_only"})
"""Tiers that are known to cost what a call costs anyhow, or less; None is the provider's own choice."""
_BILLED_AS = {"fast": "priority"}
"""A second name, at OpenAI."""


def billed_as(tier: str) -> str:
    """Return what answers, and prices, call a tier that is asked for by that name."""
    return _BILLED_AS.get(tier, tier)


def tier_cost(price: PriceConfig, usage: Usage, tier: str | None) -> float | None:
    """Return what a call of that usage costs in a tier, in USD.

    A tier for which the settings have no factor costs the whole price. None where it may cost more than that.
    """
    factor = None if tier is None else price.tiers.get(billed_as(tier))
    if factor is None and tier not in _NO_DEARER:
        return None
    return cost(price, usage) * (1.0 if factor is None else factor)


def cost_at_least(price: PriceConfig, usage: Usage, tier: str | None) -> float:
    """Return `tier_cost`, and the whole price where that is not known."""
    known = tier_cost(price, usage, tier)
    return cost(price, usage) if known is None else known


def leaves_tier(refusals: int, traffic: TrafficClass, time_left: float | None) -> bool:
    """Return whether a call goes on in the default tier after the one that we chose had no room for it.

    ``refusals`` is how often that was; ``time_left`` the seconds up to the call's deadline, None without one. A
    person does not wait for room. Bulk asks a second time, unless an answer might come too late by then.
    """
    if not refusals:
        return False
    hurried = traffic is TrafficClass.INTERACTIVE or (time_left is not None and time_left < LONGEST_FLEX)
    return hurried or refusals > 1
