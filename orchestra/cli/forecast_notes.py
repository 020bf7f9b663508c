"""What a dry run says beside its forecast: what would hold the run up, and what would serve it better."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestra.cli.price_gaps import price_gaps

if TYPE_CHECKING:
    from orchestra.config import Config
    from orchestra.jobs import Forecast, Survey

__all__ = ["batch_notes", "cap_notes", "endpoint_notes", "unpriced_notes"]

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


def cap_notes(config: Config, forecast: Forecast) -> Iterator[str]:
    """Say where a day's dollars may not be enough."""
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
    for (name, at), cost in costs.items():
        cap = config.providers[name].limits[at].usd_per_day
        if cap is not None and (cost.high is None or cost.high > cap):
            most = "is bounded by nothing" if cost.high is None else f"may be {format_usd(cost.high)}"
            yield (
                f"the cost at {name} {most}, and usd_per_day is {format_usd(cap)}: what is above that waits for "
                "the day after, and fails where the deadline comes first"
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
