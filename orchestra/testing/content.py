"""Bytes that a `ScriptedProvider` keeps: few in memory, many on disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator

__all__ = ["Content", "Spool", "joined"]

_IN_MEMORY = 1 << 20
_PIECE = 1 << 18


class _Nameless:
    """A file on disk that nobody else can open, gone when nobody holds it."""

    __slots__ = ("descriptor",)

    def __init__(self) -> None:
        self.descriptor, path = tempfile.mkstemp(prefix="scripted-provider-")
        os.unlink(path)

    def __del__(self) -> None:
        os.close(self.descriptor)

    def append(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]

    def read(self, start: int, size: int) -> bytes:
        read = b""
        while len(read) < size:  # the system returns 2 GB at once at most
            more = os.pread(self.descriptor, size - len(read), start + len(read))
            if not more:
                raise EOFError("a file of the scripted provider lost its end")
            read += more
        return read


class Content:
    """Bytes that no longer change: in memory, or a stretch of a file on disk that is gone when nobody holds it."""

    __slots__ = ("_held", "_start", "size")

    def __init__(self, held: bytes | _Nameless, start: int = 0, size: int | None = None) -> None:
        if size is None:
            assert isinstance(held, bytes)
            size = len(held) - start
        self._held = held
        self._start = start
        self.size = size

    def read(self, start: int = 0, size: int | None = None) -> bytes:
        """Return ``size`` bytes from ``start`` on, or as many as there are."""
        left = self.size - start
        wanted = left if size is None else min(size, left)
        if wanted <= 0:
            return b""
        start += self._start
        if isinstance(self._held, bytes):
            return self._held[start : start + wanted]
        return self._held.read(start, wanted)

    def part(self, start: int, stop: int) -> Content:
        """Return a stretch of it, without a copy."""
        return Content(self._held, self._start + start, stop - start)

    def pieces(self) -> Iterator[bytes]:
        """Yield all of it, in pieces."""
        for start in range(0, self.size, _PIECE):
            yield self.read(start, _PIECE)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield its lines without their ends, and where each starts."""
        at, rest = 0, b""
        for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield at, line
                at += len(line) + 1
        if rest:
            yield at, rest

    def find(self, wanted: bytes, start: int = 0) -> int:
        """Return where ``wanted`` stands first from ``start`` on, or -1."""
        while start < self.size:
            piece = self.read(start, _PIECE + len(wanted) - 1)
            found = piece.find(wanted)
            if found >= 0:
                return start + found
            start += _PIECE
        return -1


class Spool:
    """Takes bytes as they come, and moves to disk when they get many."""

    def __init__(self) -> None:
        self.size = 0
        self._few = bytearray()
        self._file: _Nameless | None = None

    def write(self, data: bytes) -> None:
        self.size += len(data)
        self._few += data
        if len(self._few) > _IN_MEMORY:
            self._file = self._file or _Nameless()
            self._file.append(self._few)
            self._few.clear()

    def content(self) -> Content:
        """Return what was written. Nothing more may be."""
        if self._file is None:
            return Content(bytes(self._few))
        self._file.append(self._few)
        return Content(self._file, 0, self.size)


def joined(lines: Iterable[str]) -> Iterator[bytes]:
    """Yield the lines, many at once."""
    held: list[str] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size > _PIECE // 2:
            yield "".join(held).encode()
            held.clear()
            size = 0
    if held:
        yield "".join(held).encode()
