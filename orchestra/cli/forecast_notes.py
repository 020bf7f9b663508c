"""What a dry run says beside its forecast: what would hold the run up, and what would serve it better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestra.cli.price_gaps import price_gaps

if TYPE_CHECKING:
    from orchestra.config import Config
    from orchestra.jobs import DayWait, Forecast, Survey

__all__ = ["batch_notes", "cap_notes", "day_notes", "endpoint_notes", "full_price_notes", "unpriced_notes"]

_OF_TEXT = ("/chat/completions", "/completions", "/responses", "/messages")
"""How the endpoints end that a model of text serves."""


def unpriced_notes(config: Config, routes: Mapping[str, Sequence[str]]) -> tuple[list[str], bool]:
    """Return where a limit in dollars lets nothing go for want of a price, and whether that leaves a model no
    route. ``routes`` are those of each model, in order of preference."""
    notes: dict[str, None] = {}
    stuck = False
    for model, ways in routes.items():
        shut = 0
        for route in ways:
            gaps = [gap for gap in price_gaps(config, route) if gap.traffic in (None, "bulk")]
            notes |= dict.fromkeys(f"{gap.detail}; {gap.remedy}" for gap in gaps)
            shut += bool(gaps)
        if shut == len(ways):
            stuck = True
            notes[f"nothing of model {model!r} would be sent"] = None
    return list(notes), stuck


def day_notes(forecast: Forecast) -> Iterator[str]:
    """Warn of limits of a day that are not enough for a day."""
    for wait in forecast.waits:
        limit = wait.limit
        told = f"warning: {limit.name} of {wait.provider} is {_amount(wait, limit.capacity)}"
        if wait.days == math.inf:
            yield f"{told}, and a line alone takes more: such lines are refused"
            continue
        yield (
            f"{told}, of which bulk may use {_amount(wait, limit.left)} now; the lines take about "
            f"{_amount(wait, wait.wanted)}, so the last of them goes after {wait.days:,.0f} "
            f"{'day' if wait.days == 1 else 'days'}; what is still waiting at a deadline fails"
        )


def _amount(wait: DayWait, amount: float) -> str:
    from orchestra.jobs import format_usd

    return format_usd(amount) if wait.limit.metric == "usd" else f"{math.floor(amount + 1e-9):,}"


def cap_notes(config: Config, forecast: Forecast) -> Iterator[str]:
    """Say where a day's dollars may not be enough, though they are for answers of the length that is expected."""
    from orchestra.budget import CostRange, limits_for
    from orchestra.jobs import format_usd

    costs: dict[tuple[str, int], CostRange] = {}
    for way in forecast.ways:
        name, _, model = way.route.partition("/")
        if way.cost is None or (provider := config.providers.get(name)) is None:
            continue
        group = limits_for(provider.limits, model)
        if group is not None and group.usd_per_day is not None:
            key = name, provider.limits.index(group)
            costs[key] = costs.get(key, CostRange(0.0, 0.0)) + way.cost
    told = {(wait.provider, wait.limit.name, wait.limit.capacity) for wait in forecast.waits}
    for (name, at), cost in costs.items():
        cap = config.providers[name].limits[at].usd_per_day
        if (name, "usd_per_day", cap) in told:
            continue
        if cap is not None and (cost.high is None or cost.high > cap):
            most = "is bounded by nothing" if cost.high is None else f"may be {format_usd(cost.high)}"
            yield (
                f"the cost at {name} {most}, and usd_per_day is {format_usd(cap)}: what is above that waits for "
                "the day after, and fails where the deadline comes first"
            )


def full_price_notes(config: Config, forecast: Forecast) -> Iterator[str]:
    """Name the setting for batches of servers whose price for them nobody publishes."""
    from orchestra.budget import price_for
    from orchestra.providers.batches import form_of_kind

    for route in dict.fromkeys(way.route for way in forecast.ways if way.via == "batch"):
        name, _, model = route.partition("/")
        provider = config.providers[name]
        price, form = price_for(provider.prices, model), form_of_kind(provider.kind)
        if price is not None and "batch" not in price.tiers and form is not None and form.traits.price_factor == 1:
            yield (
                f"batches of {name} are counted at the full price, since nobody publishes one for its kind; "
                f"where they cost less, add tiers = {{ batch = 0.5 }} to [[providers.{name}.prices]]"
            )


def batch_notes(config: Config, routes: Iterable[str]) -> Iterator[str]:
    """Name the setting for providers whose batches are off unless somebody wants them."""
    from orchestra.kinds import KINDS

    for name in dict.fromkeys(route.partition("/")[0] for route in routes):
        provider = config.providers.get(name)
        if provider is None or provider.batch.enabled is not None:
            continue
        kind = KINDS[provider.kind]
        if kind.batches is not None and not kind.batches_by_default:
            yield (
                f"batches of {name} are off by default, since not every server of its kind has them; where it "
                f"has, set [providers.{name}.batch] enabled = true"
            )


def endpoint_notes(survey: Survey, model: str | None) -> Iterator[str]:
    """Warn of lines for which one model for all is a doubtful choice."""
    for kind in survey.kinds.values() if model is not None else ():
        if not kind.path.endswith(_OF_TEXT):
            lines = "1 line" if kind.lines == 1 else f"{kind.lines:,} lines"
            yield f"warning: --model asks {model!r} for {kind.path} too ({lines}): does it serve that?"
