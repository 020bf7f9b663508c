"""The check of a whole file of lines, before any of them is taken in.

It needs no ledger. Lines of the same custom_id are found among hashes of eight bytes each, which is all that is
kept of a good line; what the hashes give cause to suspect is then looked at itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass

from orchestra.errors import InputError
from orchestra.jobs.intake.line_parser import LineParser, faults_error
from orchestra.jobs.intake.sources import NO_LINES, JsonlFile
from orchestra.jobs.ledger.line import Fault, named_twice
from orchestra.jobs.ledger.threads import in_steps

__all__ = ["Inspection", "inspect_file"]

FAULTS_TOLD = 10

_STEP_LINES = 5000
_SPREAD = "jq -c '.[]' FILE makes lines of a list, jq -c . FILE of an object"
_BUCKETS = 256
"""Hashes are compared a bucket at a time: as objects they take ten times the room."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found: how many lines there are, blank ones not counted, and which of them cannot be used.

    ``faults`` are the first of ``fault_count``. ``twice`` are the numbers of those that are faulty by nothing but
    their custom_id, which an earlier line has.
    """

    lines: int
    faults: tuple[Fault, ...]
    fault_count: int
    twice: Collection[int]

    def refuse(self, source: str) -> None:
        """Raise InputError where the file holds no lines, or one that cannot be used."""
        if not self.lines:
            raise InputError(f"{source}: {NO_LINES}")
        if self.fault_count:
            raise faults_error(source, self.faults, self.fault_count)


async def inspect_file(file: JsonlFile, parser: LineParser) -> Inspection:
    """Check all lines of a file.

    Raises InputError where it is JSON, but not of one object a line, where it cannot be read to its end, and where
    it changes meanwhile.
    """
    return await in_steps(_inspect(file, parser))


def _inspect(file: JsonlFile, parser: LineParser) -> Generator[None, None, Inspection]:
    lines = 0
    faults = _Faults()
    names: list[array[int]] = [array("q") for _ in range(_BUCKETS)]
    for number, raw in file.lines():
        if lines % _STEP_LINES == 0:
            yield
        lines += 1
        if lines == 1 and (raw.lstrip(b"\xef\xbb\xbf \t")[:1] == b"[" or raw.strip() == b"{"):
            raise InputError(f"{file.name}: JSON over many lines, or a list: write one object a line ({_SPREAD})")
        name = parser.check(number, raw)
        if isinstance(name, Fault):
            faults.add(name)
        else:
            key = hash(name)
            names[key % _BUCKETS].append(key)
    suspects = frozenset(key for bucket in names for key in _repeated(bucket))
    del names
    twice = array("Q")
    if suspects:
        first: dict[str, int] = {}
        for place, (number, raw) in enumerate(file.lines()):
            if place % _STEP_LINES == 0:
                yield
            name = parser.check(number, raw)
            if isinstance(name, Fault) or hash(name) not in suspects:
                continue
            if first.setdefault(name, number) != number:
                twice.append(number)
                faults.add(named_twice(number, name, first[name], b""))
    return Inspection(lines, tuple(faults.first), faults.count, twice)


class _Faults:
    """Counts faults, and keeps the first by number."""

    def __init__(self) -> None:
        self.first: list[Fault] = []
        self.count = 0

    def add(self, fault: Fault) -> None:
        self.count += 1
        if len(self.first) < FAULTS_TOLD or fault.number < self.first[-1].number:
            self.first = sorted((*self.first, fault), key=lambda fault: fault.number)[:FAULTS_TOLD]


def _repeated(keys: array[int]) -> Iterator[int]:
    if len(set(keys)) == len(keys):
        return
    seen: set[int] = set()
    for key in keys:
        if key in seen:
            yield key
        seen.add(key)
