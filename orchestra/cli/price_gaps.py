"""Where dollars are limited and a price is missing: nothing can be sent there, since nobody could count it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from orchestra.config import Config

__all__ = ["PriceGap", "price_gaps"]


class PriceGap(NamedTuple):
    """What is missing on a route, and what to do. ``traffic`` is the class that cannot be sent; None: all."""

    traffic: str | None
    detail: str
    remedy: str


def price_gaps(config: Config, route: str) -> Iterator[PriceGap]:
    """Yield what is missing on one route, ``PROVIDER/MODEL``."""
    from orchestra.budget import limits_for, price_for
    from orchestra.call import Usage
    from orchestra.dispatch.tiers import billed_as, tier_cost

    name, _, model = route.partition("/")
    if (provider := config.providers.get(name)) is None:
        return
    group = limits_for(provider.limits, model)
    if group is None or group.usd_per_day is None:
        return
    price = price_for(provider.prices, model)
    if price is None:
        detail = f"usd_per_day is set for {route}, and no price: nothing will be sent there"
        yield PriceGap(None, detail, f"add [[providers.{name}.prices]] for {model!r}")
        return
    for traffic, tier in provider.service_tiers.model_dump(exclude_none=True).items():
        if tier_cost(price, Usage(), tier) is None:
            detail = f"usd_per_day is set for {route}, and no price for {tier!r}: nothing {traffic} is sent"
            remedy = f"add tiers = {{ {billed_as(tier)} = FACTOR }} to its [[providers.{name}.prices]]"
            yield PriceGap(traffic, detail, remedy)
