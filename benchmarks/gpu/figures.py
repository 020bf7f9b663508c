"""What a section tells, a line at a time: a figure, why there is none, or what failed. Standard library alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

__all__ = ["Figure", "Target", "told"]

_SPEEDS = frozenset({"GB/s", "TFLOP/s", "tokens/s", "ms", "x"})
"""Units of what means nothing where it was rehearsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a figure ought to be: its share where it has one, else its value."""

    least: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        """Whether ``value`` is within the bounds; what is no number is not."""
        above = self.least is None or value >= self.least
        below = self.most is None or value <= self.most
        return above and below and value == value


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table.

    ``value`` in ``unit`` is what was measured, and ``share`` what part that is of the ceiling named in ``of``. A
    line without a value was left out, and ``note`` says why, or failed with ``error``, or was ``rehearsed``.
    """

    what: str
    value: float | None = None
    unit: str = ""
    share: float | None = None
    of: str = ""
    target: Target | None = None
    note: str = ""
    error: str = ""
    rehearsed: bool = False

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None where there is none, or nothing was measured."""
        if self.target is None or self.value is None:
            return None
        return self.target.holds(self.value if self.share is None else self.share)

    def as_rehearsed(self) -> Figure:
        """Return the line of a rehearsal: with its number where that is an error, without where it is a speed."""
        if self.value is None or self.unit not in _SPEEDS:
            return replace(self, rehearsed=True)
        if not 0 < self.value < float("inf"):
            return Figure(what=self.what, error=f"{self.value} {self.unit} is no speed", rehearsed=True)
        return Figure(what=self.what, unit=self.unit, target=self.target, rehearsed=True)

    def as_told(self) -> dict[str, Any]:
        """Return the line as plain data, without what it has not."""
        lean = {name: own for name, own in asdict(self).items() if own or isinstance(own, float)}
        if self.target is not None:
            lean["target"] = {name: bound for name, bound in asdict(self.target).items() if bound is not None}
        if self.holds is not None:
            lean["holds"] = self.holds
        return lean

    @classmethod
    def from_told(cls, line: Mapping[str, Any]) -> Self:
        """Return what `as_told` made ``line`` of."""
        known = {name: value for name, value in line.items() if name in cls.__dataclass_fields__}
        if "target" in known:
            known["target"] = Target(**known["target"])
        return cls(**known)


def told(error: BaseException) -> str:
    """An error's type and the beginning of its text, on one line: CUDA's go on for paragraphs.

    Of a group of errors it is the first.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}{'...' if len(text) > 300 else ''}"
