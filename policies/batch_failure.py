"""What becomes of a batch's lines when it fails as a whole.

==========================================  ========  =============================================================
What happened                               Lines     Why
==========================================  ========  =============================================================
its queue is full (`BatchState.queue_full`,  wait      nothing was tried, so it counts as no attempt; there is room
or a code that says so)                               again when a batch ends
the model is not known                      refused   it holds for every line alike, however it is sent; unless
                                                      the model answers synchronously: only batches lack it
the file was not as the endpoint wants it   released  that is our fault or one line's, and no other line's: each
                                                      gets its own verdict where it goes next
the provider failed, or a code nobody knows released  the same lines may do well elsewhere, or there a little later
the batch is not found any more             released  `is_gone`: not before it was missed again and again
a status nobody knows, until long after     released  `given_up_at`: it may be a new word for being at work
its end
it was forbidden (403), again and again:    released  keys may be allowed calls and no batches; where the whole
`is_meant`, `after_refusal`                           account is refused, the calls hear so
it was refused otherwise                    released  each line gets its own verdict where it goes next
==========================================  ========  =============================================================

A released line waits again and `choose` decides; its outlet is shut for a while, so that it does not go round in a
circle. Deadlines are not the business of this table: `escalation` holds whatever a batch's state is.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from orchestra.policies.diversion import BatchOutlet

__all__ = ["AfterFailure", "Recourse", "after_failure", "after_refusal", "given_up_at", "is_gone", "is_meant"]

_FIRST_WAIT = 30.0
_LONGEST_WAIT = 900.0
_SHUT = 600.0
_SHUT_FOR_GOOD = 86_400.0
_MISSES = 5
_MISSING_SECONDS = 120.0
_REFUSALS = 3
_REFUSED_SECONDS = 60.0


class Recourse(enum.StrEnum):
    """What the lines of a failed batch do."""

    WAIT = "wait"
    RELEASE = "release"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class AfterFailure:
    """``shut_for`` is for how many seconds the outlet takes no batch of that model. ``counts`` as an attempt."""

    recourse: Recourse
    shut_for: float
    counts: bool


_QUEUE_FULL = frozenset({"token_limit_exceeded", "too_many_tasks"})
_NO_SUCH_MODEL = frozenset({"model_not_found"})
_WRONG_FILE = frozenset(
    {
        "duplicate_custom_id",
        "empty_file",
        "invalid_json_line",
        "invalid_request",
        "model_mismatch",
        "url_mismatch",
    }
)
"""Codes of Azure's batch guide; OpenAI has no list and uses some of them."""


def after_failure(code: str, *, queue_full: bool = False, times: int = 1, answers: bool = False) -> AfterFailure:
    """Return what becomes of the lines of a batch that failed with ``code``.

    ``queue_full`` says that it was only for want of room; ``times`` is how often in a row that has happened.
    ``answers`` says that the same model of the same account is known to answer synchronously.
    """
    if queue_full or code in _QUEUE_FULL:
        wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(16, max(0, times - 1)))
        return AfterFailure(Recourse.WAIT, wait, counts=False)
    if code in _NO_SUCH_MODEL:
        recourse = Recourse.RELEASE if answers else Recourse.REFUSE
        return AfterFailure(recourse, _SHUT_FOR_GOOD, counts=True)
    if code in _WRONG_FILE:
        return AfterFailure(Recourse.RELEASE, _SHUT_FOR_GOOD, counts=True)
    return AfterFailure(Recourse.RELEASE, _SHUT, counts=True)


def after_refusal(*, forbidden: bool, of_line: bool = False) -> AfterFailure:
    """Return what becomes of the lines of a batch whose creation was refused.

    ``forbidden``: for want of a right, which no wait brings. ``of_line``: it is of one line, and may be refused
    for that line alone.
    """
    if forbidden:
        return AfterFailure(Recourse.RELEASE, _SHUT_FOR_GOOD, counts=True)
    return AfterFailure(Recourse.RELEASE, 0.0 if of_line else _SHUT, counts=True)


def is_gone(misses: int, missing_for: float) -> bool:
    """Return whether a batch that was not found ``misses`` times in a row, over so many seconds, is lost.

    Providers may not find a batch that was just created, nor one while a part of them is down.
    """
    return misses >= _MISSES and missing_for >= _MISSING_SECONDS


def is_meant(refusals: int, refused_for: float) -> bool:
    """Return whether a key that was refused a right ``refusals`` times in a row, over so many seconds, has none.

    A gateway's rules may be wrong for a moment, and a day of batches is too much to lose by that.
    """
    return refusals >= _REFUSALS and refused_for >= _REFUSED_SECONDS


def given_up_at(created: float, window: float, outlet: BatchOutlet) -> float:
    """Return when a batch that has not ended is forgotten: nothing more can be hoped for.

    That is after its window, or where nobody says that a batch expires after twice that, and the time to settle.
    """
    life = 2 * window if outlet.hard_expiry is None else max(window, outlet.hard_expiry)
    return created + life + outlet.cancelling
