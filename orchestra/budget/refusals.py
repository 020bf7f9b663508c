"""What a call is told that the budget does not let go."""

from __future__ import annotations

import math

from orchestra.budget.dimension import Dimension
from orchestra.budget.line import Line
from orchestra.budget.ticket import Ticket
from orchestra.durations import format_duration
from orchestra.errors import AdmissionTimeout, BudgetExceeded, PriceUnknown, QueueFull

__all__ = ["budget_exceeded", "price_unknown", "queue_full", "timed_out"]


def budget_exceeded(dimension: Dimension, ticket: Ticket, wait: float, now: float) -> BudgetExceeded:
    """Return the error of a call that a limit keeps out for ``wait`` seconds from ``now``, or for ever."""
    name, capacity, amount = dimension.name, dimension.bucket.capacity, dimension.amount(ticket.charge)
    if not dimension.bucket.hard:
        return BudgetExceeded(f"no {name} are left for a call that takes {amount:g}")
    if amount > capacity:
        return BudgetExceeded(f"a call that takes {amount:g} can never fit {name} = {capacity:g}")
    message = f"{name} = {capacity:g} is used up"
    if wait == math.inf:
        message += f": {amount:g} would fit only if calls under way came out cheaper than was set aside for them"
        return BudgetExceeded(message)
    message += f": there is room for {amount:g} again in {_seconds(wait)}"
    return BudgetExceeded(message, expected_wait=now - ticket.entered_at + wait)


def price_unknown() -> PriceUnknown:
    """Return the error of a call whose costs are limited and not known."""
    return PriceUnknown(
        "usd_per_day holds for this call, and what it costs is not known: add a price for its model under "
        "[[providers.NAME.prices]]"
    )


def timed_out(ticket: Ticket, expected: float | None, now: float, *, paused: str) -> AdmissionTimeout:
    """Return the error of a call whose bound passes, of which it would have had to wait ``expected`` from ``now``.

    ``paused`` is what the account is paused for, empty where it is not.
    """
    waited, bound = now - ticket.entered_at, ticket.bound - ticket.entered_at
    message = f"the {ticket.traffic} call was not admitted within its bound of {_seconds(bound)}"
    if paused:
        message += f": the account is paused ({paused})"
    if expected is not None:
        message += f"; it would have waited about {_seconds(waited + expected)}"
        expected += waited
    return AdmissionTimeout(message, expected_wait=expected, timed_out=now >= ticket.bound)


def queue_full(line: Line, expected: float | None) -> QueueFull:
    """Return the error of a call that was one too many in its line, where it would wait ``expected`` seconds."""
    message = f"{line.waiting - 1} {line.traffic} calls are waiting, and no more may"
    if expected is not None:
        message += f"; this one would wait about {_seconds(expected)}"
    return QueueFull(message, expected_wait=expected)


def _seconds(seconds: float) -> str:
    return format_duration(max(0.0, seconds))
