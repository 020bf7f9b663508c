"""What calls cost, by the prices of the settings.

There is no table of prices built in: prices change, differ by contract, and a wrong one is worse than none. What a
model costs is what ``[[providers.X.prices]]`` says, and where that says nothing, nobody knows, and we say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestra.budget.limits import matches
from orchestra.call import Usage
from orchestra.config import PriceConfig

__all__ = ["CostRange", "batch_factor", "cost", "estimate", "price_for"]

_TOKENS_PER_PRICE = 1e6


@dataclass(frozen=True, slots=True)
class CostRange:
    """From ``low`` to ``high``, in USD. ``high`` is None where nothing bounds it. Two of them add up."""

    low: float
    high: float | None

    def __add__(self, other: CostRange) -> CostRange:
        high = None if self.high is None or other.high is None else self.high + other.high
        return CostRange(self.low + other.low, high)


def price_for(prices: Iterable[PriceConfig], model: str | None) -> PriceConfig | None:
    """Return the first price whose patterns match the model, or None."""
    return next((price for price in prices if matches(price, model)), None)


def batch_factor(price: PriceConfig | None, documented: float, label: str = "batch") -> float:
    """Return what a token costs in a batch, or what else ``label`` names, of its ordinary price: as the settings
    say, or else ``documented``."""
    return documented if price is None else price.tiers.get(label, documented)


def cost(price: PriceConfig, usage: Usage, factor: float = 1.0) -> float:
    """Return what a call of that usage costs at ``factor`` of the price, in USD."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    cached_price = price.input if price.cached_input is None else price.cached_input
    fresh = usage.input_tokens - cached
    total = fresh * price.input + cached * cached_price + usage.output_tokens * price.output
    return factor * total / _TOKENS_PER_PRICE


def estimate(
    price: PriceConfig | None,
    input_tokens: int,
    most_output_tokens: int | None,
    *,
    least_factor: float = 1.0,
    most_factor: float = 1.0,
) -> CostRange | None:
    """Return what work will cost that has not been done; None where the price is unknown.

    ``low``: the input alone, as if every answer were empty, at ``least_factor`` of the price, which is a batch's
    where it may go into one. ``high``: every answer as long as it may be, at ``most_factor``, which is 1 where a
    batch may have to be left before it is done. ``most_output_tokens`` is None where nothing bounds the answers.

    Both are as good as the count of the input, which before sending is an estimate. No input is taken for cached:
    nobody can tell before.
    """
    if price is None:
        return None
    low = cost(price, Usage(input_tokens), least_factor)
    if most_output_tokens is None:
        return CostRange(low, None)
    return CostRange(low, cost(price, Usage(input_tokens, most_output_tokens), most_factor))
