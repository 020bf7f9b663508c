"""The ways in which one machine can serve two kinds of traffic, and in which order they are measured."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Way", "turns"]


class Way(StrEnum):
    """``ONE_QUEUE``: continuous batching, first come, first served. ``STATIC``: the same queue, but one batch is
    computed to its end before the next is taken. ``POOLS``: two engines of half the size, one for each kind.
    ``CLASSES``: one engine that knows both kinds, Orchestra's own."""

    ONE_QUEUE = "one queue"
    STATIC = "static"
    POOLS = "two pools"
    CLASSES = "classes"


def turns(number: int) -> list[Way]:
    """Return the order of the ways in round ``number``, from 0.

    They take turns, so that a machine that becomes slower or quicker meanwhile does so for all of them; and each
    round begins with another, so that none always comes first (a Latin square, in four rounds).
    """
    ways = list(Way)
    first = number % len(ways)
    return ways[first:] + ways[:first]
