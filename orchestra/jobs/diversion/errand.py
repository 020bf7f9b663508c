"""What somebody who has a batch carried says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from orchestra.jobs.ledger.record import BatchRecord
from orchestra.policies.escalation import Escalation

__all__ = ["Errand"]


class Errand(Protocol):
    """What somebody who has a batch carried decides about it, and hears of it."""

    def bounds(self) -> Escalation | None:
        """Return when the batch must have come to its end; None where nothing presses. It is asked again and
        again, since that moves with the number of lines that ride. Called in a thread."""
        ...

    def is_awaited(self) -> bool:
        """Return whether anybody wants its lines. Called in a thread."""
        ...

    def is_wanted(self) -> bool:
        """Return whether its results may still be of use, once its lines go by themselves. Called in a thread."""
        ...

    def refused(self, why: str) -> None:
        """Hear that the provider refuses the account, whatever it is asked for, or a look for the batch.

        Raises JobError where the batch is to stay as it is until somebody has put that right.
        """
        ...

    def fails(self, what: str, why: str, until: float | None) -> None:
        """Hear that a batch cannot be ``what`` ("handed in", "looked at") for a reason that is not its own, and
        that it is tried again at ``until``, in unix time; None where it waits."""
        ...

    def works(self, what: str) -> None:
        """Hear that batches can be ``what`` again."""
        ...

    def ended(self, numbers: Sequence[int], count: int, *, late: bool) -> None:
        """Hear that so many of these lines have ended. ``late``: they were let go, and may be under way."""
        ...

    def released(self) -> None:
        """Hear that lines are free again."""
        ...

    def over(self, record: BatchRecord) -> None:
        """Hear that the batch, which is ``record`` now, is over."""
        ...
