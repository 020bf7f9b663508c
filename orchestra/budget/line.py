"""Where the calls of one traffic class wait."""

from __future__ import annotations

from orchestra.budget.ticket import Ticket
from orchestra.policies.fairness import FairQueue
from orchestra.policies.traffic import TrafficClass

__all__ = ["Line"]


class Line:
    """The calls of one class that wait, in fair order, and how many wait and are under way.

    ``backlog`` is what those that wait will cost, in seconds of refill.
    """

    __slots__ = ("backlog", "granted", "in_use", "queue", "traffic", "waiting")

    def __init__(self, traffic: TrafficClass, *, lateness: float, yields: float = 0.0) -> None:
        self.traffic = traffic
        self.queue: FairQueue[Ticket] = FairQueue(lateness=lateness, yields=yields)
        self.backlog = 0.0
        self.waiting = 0
        self.in_use = 0
        self.granted = 0

    def enter(self, ticket: Ticket, cost: float, now: float) -> None:
        """Give a call its place."""
        ticket.place = self.queue.push(
            ticket, job=ticket.job, cost=cost, now=now, expires_at=ticket.bound, front=ticket.front
        )
        self.backlog += cost
        self.waiting += 1

    def pop(self) -> Ticket:
        """Take the call whose turn it is."""
        return self._left(self.queue.pop())

    def remove(self, ticket: Ticket) -> None:
        """Take a call out before its turn."""
        if ticket.place is not None and self.queue.remove(ticket.place):
            self._left(ticket)

    def _left(self, ticket: Ticket) -> Ticket:
        if ticket.place is not None:
            self.waiting -= 1
            self.backlog = self.backlog - ticket.place.cost if self.waiting else 0.0
            ticket.place = None
        return ticket
