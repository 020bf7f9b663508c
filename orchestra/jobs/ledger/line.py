"""A line of a job: a request that may be sent, or the fault for which it cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Fault", "Line", "named_twice"]


class Line(NamedTuple):
    """A request that may be sent.

    ``number`` is its place in the input, from 1. ``body`` is compact JSON, its keys in the order given: a model
    may answer differently to another order. ``digest`` identifies the request: custom_id, endpoint and body.
    """

    number: int
    custom_id: str
    path: str
    body: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that cannot be used, and why."""

    number: int
    message: str
    digest: bytes

    @property
    def custom_id(self) -> str:
        return f"line-{self.number}"


def named_twice(number: int, custom_id: str, first: int, digest: bytes) -> Fault:
    """Return the fault of a line whose custom_id an earlier one, number ``first``, has."""
    message = f"custom_id {custom_id!r:.80} is that of line {first} too; each must be unique"
    return Fault(number, message, digest)
