"""One call at the gate."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Any

from orchestra.call import Charge
from orchestra.errors import AdmissionError
from orchestra.policies.traffic import TrafficClass

if TYPE_CHECKING:
    from orchestra.budget.dimension import Dimension
    from orchestra.budget.learning import Stamp
    from orchestra.policies.fairness import Place
    from orchestra.policies.heap import Entry

__all__ = ["UNRAISED", "State", "Ticket", "check_charge"]

_MOST = 1e30
UNRAISED = (1.0, 1.0)
"""The factors, of a prompt's tokens and of dollars, by which an estimate is raised that is believed."""


class State(enum.Enum):
    """NEW -> WAITING -> GRANTED -> OVER; from anywhere to OVER."""

    NEW = enum.auto()
    WAITING = enum.auto()
    GRANTED = enum.auto()
    OVER = enum.auto()


_NEW, _GRANTED, _OVER = State.NEW, State.GRANTED, State.OVER


def check_charge(charge: Charge) -> None:
    """Raise ValueError for amounts that no bucket can be asked to hold: an int may exceed every float."""
    if not (
        0 <= charge.requests <= _MOST
        and 0 <= charge.tokens <= _MOST
        and 0 <= charge.input_tokens <= _MOST
        and 0 <= charge.output_tokens <= _MOST
        and (charge.usd is None or 0 <= charge.usd <= _MOST)
    ):
        raise ValueError("the amounts of a charge must be finite and not below zero")


class Ticket:
    """What a call asks for, and how it fares.

    ``expires_at`` bounds its wait by an instant, ``queue_bound`` by a duration from its entry in seconds.
    ``front`` puts it before all others of its class (a retry). ``owner`` is whatever its holder wants to find
    again; None is nobody. Where it is OVER without having been granted, ``error`` says why. ``charge`` is the
    caller's ``estimate``, raised as far as such estimates of tokens and of dollars have turned out too low.

    The fields below the blank line of ``__init__`` belong to the `Admission` that it stands before.
    """

    __slots__ = (
        "bound",
        "charge",
        "entered_at",
        "error",
        "estimate",
        "expiry",
        "front",
        "granted_at",
        "held_in",
        "job",
        "owner",
        "place",
        "queue_bound",
        "raised_by",
        "stamp",
        "state",
        "traffic",
    )

    def __init__(
        self,
        charge: Charge,
        traffic: TrafficClass,
        job: str | None = None,
        expires_at: float | None = None,
        queue_bound: float | None = None,
        front: bool = False,
        owner: Any = None,
    ) -> None:
        check_charge(charge)
        if expires_at is not None and math.isnan(expires_at):
            raise ValueError(f"expires_at must be an instant, not {expires_at!r}")
        if queue_bound is not None and not queue_bound >= 0:
            raise ValueError(f"queue_bound must be a number of seconds, zero or above, not {queue_bound!r}")
        self.charge = self.estimate = charge
        self.traffic = traffic if traffic.__class__ is TrafficClass else TrafficClass(traffic)
        self.job = job
        self.bound = math.inf if expires_at is None else expires_at
        self.queue_bound = math.inf if queue_bound is None else queue_bound
        self.front = front
        self.owner = owner

        self.state = _NEW
        self.raised_by = UNRAISED
        self.error: AdmissionError | None = None
        self.entered_at = 0.0
        self.granted_at = 0.0
        self.place: Place[Ticket] | None = None
        self.expiry: Entry | None = None
        self.held_in: tuple[Dimension, ...] = ()
        self.stamp: Stamp | None = None

    @property
    def decided(self) -> bool:
        """Whether it was granted or failed."""
        return self.state is _GRANTED or self.state is _OVER
