"""The lines of a batch by their positions."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from orchestra.testing.bills import ask_hash
from orchestra.testing.content import Content

__all__ = ["BREATH", "Line", "Roll"]

BREATH = 256
"""After so many lines, who goes through them all lets others run."""

_AHEAD = 1 << 18


class Line(NamedTuple):
    """One request of a batch."""

    custom_id: str
    payload: Mapping[str, Any]


class Roll:
    """Where each line of a batch stands, and what it counts for. The lines stay where they are, and are read again
    when somebody wants their answers: in memory it is 36 bytes a line.

    ``read`` makes a line of one's bytes. ``marked`` are the custom ids whose positions somebody will ask for; they
    stand in ``positions``.
    """

    def __init__(self, content: Content, read: Callable[[bytes], Line], marked: Collection[str] = ()) -> None:
        self.ids = array("q")
        self.asks = array("q")
        self.prompts = array("I")
        self.outputs = array("I")
        self.positions: dict[str, int] = {}
        self._content = content
        self._read = read
        self._marked = frozenset(marked)
        self._starts = array("Q")
        self._sizes = array("I")

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, start: int, size: int, line: Line, prompt: int, output: int) -> None:
        """Note the line at this place of the content, and the tokens of its prompt and its usual answer."""
        if line.custom_id in self._marked:
            self.positions[line.custom_id] = len(self.ids)
        self._starts.append(start)
        self._sizes.append(size)
        self.ids.append(hash(line.custom_id))
        self.asks.append(ask_hash(line.payload))
        self.prompts.append(prompt)
        self.outputs.append(output)

    def line(self, position: int) -> Line:
        return self._read(self._content.read(self._starts[position], self._sizes[position]))

    def reader(self) -> Callable[[int], Line]:
        """Return what reads lines, and reads ahead for who takes one after the other."""
        base, ahead, follows = 0, b"", -1

        def line(position: int) -> Line:
            nonlocal base, ahead, follows
            start, size = self._starts[position], self._sizes[position]
            if position != follows:
                ahead = b""
            elif not base <= start <= start + size <= base + len(ahead):
                base, ahead = start, self._content.read(start, max(size, _AHEAD))
            follows = position + 1
            if not ahead:
                return self.line(position)
            return self._read(ahead[start - base : start - base + size])

        return line
