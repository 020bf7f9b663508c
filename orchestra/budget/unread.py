"""Streams whose reader has gone away without a word, and when to look for them."""

from __future__ import annotations

import math

__all__ = ["Unread"]

STALE_AFTER = 1.0
"""Seconds for which a stream must have gone unread before anyone looks whether it has a reader left."""
_LOOKS = 2
"""How often is looked for the reader of one stream: a collection may only set off what the next one frees."""
_LONGEST_PAUSE = 16.0


class Unread:
    """When each open stream was last handed something that nobody has asked on from yet.

    A stream that an SDK's caller drops in the middle is often a cycle of references. Nothing ends it, and its
    lease, before the garbage collector runs; and on an idle loop it does not run. So whoever waits for a slot
    may have it looked for: once a second at most, and twice for a stream. Each time that a reader comes back who
    was looked for, the pause between two looks doubles, up to a limit: one that is merely slow costs few
    collections, not one every second. A stream that ends after a look makes it a second again.
    """

    def __init__(self) -> None:
        self._since: dict[int, float] = {}  # in the order of their instants, those still worth a look
        self._looked_for: dict[int, int] = {}
        self._looked_at = -math.inf
        self._pause = STALE_AFTER

    def handed(self, stream: int, now: float) -> None:
        """Note that the reader of ``stream`` was given something, and is to ask on."""
        self.asked(stream)
        self._since[stream] = now

    def asked(self, stream: int) -> None:
        """Note that the reader of ``stream`` is there."""
        self._since.pop(stream, None)
        if self._looked_for.pop(stream, None):
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def ended(self, stream: int) -> None:
        """Note that ``stream`` has ended."""
        self._since.pop(stream, None)
        if self._looked_for.pop(stream, None):
            self._pause = STALE_AFTER

    def next_look(self) -> float:
        """Return when to look; infinity where all are read."""
        try:
            oldest = next(iter(self._since.values()), math.inf)
        except RuntimeError:  # another thread's stream came or went in this moment: look again soon
            oldest = self._looked_at
        return max(oldest + STALE_AFTER, self._looked_at + self._pause)

    def look(self, now: float) -> bool:
        """Return whether it is time to collect garbage, and note that it is done."""
        if now < self.next_look():
            return False
        self._looked_at = now
        for stream, since in list(self._since.items()):
            if now < since + STALE_AFTER:
                break
            looks = self._looked_for[stream] = self._looked_for.get(stream, 0) + 1
            if looks == _LOOKS:
                self._since.pop(stream, None)
        return True
