"""When lines leave a batch that is not done: the latest instant that still answers them before their deadline.

The batch is the cheap way and the synchronous way the sure one, so a batch is waited for as long as the sure way
needs no more than the time that is left. Where a cancelled batch tells what it had finished, it is cancelled some
time before, so that it can settle: then only what it had not finished is sent, and paid, again.
"""

from __future__ import annotations

from typing import NamedTuple

from orchestra.policies.diversion import BatchOutlet, SyncPace

__all__ = ["Escalation", "escalate"]

_LEAST = 0.125
"""The share of its time that is kept at least for a batch whose lines are said to be finished, and that tells none
of them: what does not end, when it should, may not end at all."""
_PATIENCE = 0.5
"""The share of its time that a batch gets at least, unless most are known to be back sooner."""


class Escalation(NamedTuple):
    """Cancel the batch at ``cancel_at``, after one last look at it; its lines wait for it until ``release_at``.

    A batch that has ended before, cancelled or not, releases what it left undone at once. What is released goes
    where `choose` says, which is out synchronously when this little time is left. An answer that comes from the
    batch later still, to a line that has one, is dropped.
    """

    cancel_at: float
    release_at: float


def escalate(
    deadline: float, created: float, lines: int, pace: SyncPace, outlet: BatchOutlet, *, finished: int = 0
) -> Escalation:
    """Return when an open batch is given up. Both instants are finite, and never after ``deadline``.

    ``created`` is when the batch was. ``lines`` counts those not known to be finished, of all open batches with a
    deadline no later than this one: they share the pace. ``finished`` counts those that the provider says it has
    finished, and that nobody has read: they can be had only once their batch ends.

    The lines are released when the synchronous way, with its margin, needs all the time that is left for them; the
    batch is cancelled its `BatchOutlet.settling` before. But it is not cancelled before it has had half of its
    time, or as long as batches are known to take where that is less: lines for which this comes too late are more
    than could have been answered synchronously anyhow, or that way has become slow, and the batch is their better
    chance. Then, too, it has its time to settle, up to half of what is left.

    Finished lines count as well where the synchronous way has time for all: a batch that does not end, not even
    when it is cancelled, then costs money and no line. Where it has not, the provider is believed, but for an
    eighth of the time; and where nothing is kept, there is nothing to believe.

    An outlet that keeps nothing is cancelled only when its lines are released: what it finished is lost by that.
    A deadline at or before ``created`` leaves no time at all: both instants are the deadline, which is now.
    """
    span = max(0.0, deadline - created)
    usual = span if outlet.duration is None else outlet.duration
    patient_until = min(deadline, created + min(usual, _PATIENCE * span))
    settled_at = patient_until + min(outlet.settling, (deadline - patient_until) / 2)
    sync_from = deadline - pace.seconds(lines + finished)
    if finished and outlet.keeps_finished and sync_from < settled_at:
        sync_from = deadline - max(pace.seconds(lines), _LEAST * span)
    return Escalation(max(sync_from - outlet.settling, patient_until), max(sync_from, settled_at))
