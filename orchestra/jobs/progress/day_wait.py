"""How long limits of a day make lines wait, as a forecast adds them up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from orchestra.budget import DayLimit, cost
from orchestra.dispatch.accounts import Account
from orchestra.providers import Endpoint, expected_usage

__all__ = ["DayWait", "DayWaits", "taken_by"]


@dataclass(frozen=True, slots=True)
class DayWait:
    """A limit of a day that has not enough left for the lines of a forecast.

    ``wanted`` is what they take of it in all, ``days`` when the last of them may go; infinity where one line alone
    is more than the limit.
    """

    provider: str
    limit: DayLimit
    wanted: float
    days: float


@dataclass(slots=True)
class DayWaits:
    """What lines take of the limits of a day, one way after another: those that come later wait longer."""

    found: dict[tuple[str, tuple[str, ...], str], DayWait] = field(default_factory=dict)

    def add(
        self,
        provider: str,
        group: tuple[str, ...],
        limits: Iterable[DayLimit],
        lines: int,
        each: Mapping[str, float],
    ) -> float:
        """Count ``lines`` that take ``each`` of what is limited. Returns after how many days the last goes.

        ``group`` are the models that share the limits.
        """
        longest = 0.0
        for limit in limits:
            key, one = (provider, group, limit.name), each.get(limit.metric, 0.0)
            before = self.found.get(key, DayWait(provider, limit, wanted=0.0, days=0.0))
            days = limit.days(lines, one, before=before.wanted)
            self.found[key] = replace(before, wanted=before.wanted + lines * one, days=max(before.days, days))
            longest = max(longest, days)
        return longest

    def longer_than_a_day(self) -> tuple[DayWait, ...]:
        """Return those where some lines wait."""
        return tuple(wait for wait in self.found.values() if wait.days)


def taken_by(
    bodies: Iterable[bytes], account: Account, endpoint: Endpoint, model: str, *, factor: float = 1.0
) -> dict[str, float]:
    """Return what a line takes on average, by metric, as admission estimates it. ``factor`` is of the price."""
    price, lines = account.price(model), 0
    taken = dict.fromkeys(("requests", "tokens", "input_tokens", "output_tokens", "usd"), 0.0)
    for body in bodies:
        lines += 1
        payload = json.loads(body)
        charge = account.provider.charge(endpoint, payload)
        for metric in ("requests", "tokens", "input_tokens", "output_tokens"):
            taken[metric] += getattr(charge, metric)
        usage = expected_usage(endpoint, payload, charge)
        if price is not None and usage is not None:
            taken["usd"] += cost(price, usage, factor)
    return {metric: amount / lines for metric, amount in taken.items()} if lines else {**taken, "requests": 1.0}
