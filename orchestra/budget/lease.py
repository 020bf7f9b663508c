"""What a call holds while it is under way."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from orchestra.budget.admission import NOTHING
from orchestra.budget.ticket import Ticket, check_charge
from orchestra.call import Charge
from orchestra.policies.traffic import TrafficClass

__all__ = ["Lease"]


class Lease:
    """A granted charge. Hold it only while the call is on the wire, and end it, in one of three ways:

    - `settle`: it was answered, and the provider counted this much,
    - `refund`: it never left us,
    - `keep`: it was sent, and nobody knows what became of it.

    Each frees the call's concurrency slot. The first end counts and any later one does nothing, because ends race:
    a body that was read to its end is closed as well.

    As a context manager it is kept at the end of the block unless it was ended inside. One that is dropped
    without an end is kept too, by its finalizer. All of this is safe from any thread, and in a finalizer.
    """

    __slots__ = ("_end", "ended", "ticket")

    def __init__(self, ticket: Ticket, end: Callable[[Ticket, Charge], None]) -> None:
        self.ticket = ticket
        self._end = end
        self.ended = False

    @property
    def charge(self) -> Charge:
        """What was reserved."""
        return self.ticket.charge

    @property
    def traffic(self) -> TrafficClass:
        return self.ticket.traffic

    @property
    def waited(self) -> float:
        """How many seconds the call waited for admission."""
        return self.ticket.granted_at - self.ticket.entered_at

    def settle(self, spent: Charge) -> None:
        """End it with what the provider counted.

        Above the charge it becomes debt, below it room: where the provider gives nothing back, say so by a
        ``spent`` that is not below `charge`. Raises ValueError, and ends nothing, where ``spent`` cannot be.
        """
        ticket = self.ticket
        if spent is not ticket.charge:
            check_charge(spent)
        if not self.ended:
            self.ended = True
            self._end(ticket, spent)

    def refund(self) -> None:
        """End it with nothing spent."""
        self._finish(NOTHING)

    def keep(self) -> None:
        """End it with all of its charge spent."""
        self._finish(self.ticket.charge)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.keep()

    def __del__(self) -> None:
        if not self.ended:
            self.keep()

    def __repr__(self) -> str:
        return f"<Lease {self.traffic} {self.charge}{' ended' if self.ended else ''}>"

    def _finish(self, spent: Charge) -> None:
        if not self.ended:
            self.ended = True
            self._end(self.ticket, spent)
