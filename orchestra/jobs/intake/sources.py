"""Where a job's lines come from: a file, a stream, or objects that a program makes.

All arrive as chunks of lines, bounded in number and in bytes, so that memory does not grow with the input.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from orchestra.errors import InputError
from orchestra.jobs.intake.line_parser import MAX_LINE_BYTES, LineParser
from orchestra.jobs.ledger.line import Fault, Line
from orchestra.jobs.ledger.threads import in_thread

__all__ = ["NO_LINES", "Chunk", "JsonlFile", "each", "file_chunks", "object_chunks"]

Chunk = list[Line | Fault]

NO_LINES = 'holds no lines; write one JSON object on each, like {"prompt": "Hello"}'
READ_BYTES = 1 << 18
CHUNK_LINES = 1000
CHUNK_BYTES = 4 << 20


class JsonlFile:
    """A file of lines, open for reading.

    ``strict`` says that one bad line refuses the file; otherwise a bad line fails and the rest go on. ``size`` is
    in bytes. It may be read any number of times, by several threads at once. Close it, or use it as a context
    manager.
    """

    def __init__(self, file: BinaryIO, name: str, *, strict: bool) -> None:
        self.name = name
        self.strict = strict
        self._file = file
        self._status = os.fstat(file.fileno())
        self._reader = _Reader(file.fileno())
        self.size = self._status.st_size

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> JsonlFile:
        """Open a file. What is not a regular one (a pipe) is read to its end first, and is not strict.

        Raises InputError where it cannot be read.
        """
        try:
            file = Path(path).open("rb")  # noqa: SIM115 -- closed by whoever closes us
        except FileNotFoundError:
            raise InputError(f"{path}: no such file; check the name and the folder") from None
        except IsADirectoryError:
            raise InputError(f"{path}: a folder; name a file of JSON lines") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return cls(file, str(path), strict=True)
        with file:
            return cls.spool(file, name=str(path))

    @classmethod
    def spool(cls, stream: BinaryIO, *, name: str = "stdin", folder: Path | None = None) -> JsonlFile:
        """Read a stream to its end into a file without a name in ``folder``, by default that for temporary files.

        Raises InputError where it cannot be kept there.
        """
        try:
            file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 -- closed by whoever closes us
            try:
                shutil.copyfileobj(stream, file, 1 << 20)
                file.flush()
                return cls(file, name, strict=False)
            except BaseException:
                with suppress(OSError):
                    file.close()
                raise
        except OSError as error:
            raise InputError(
                f"{name}: cannot be copied to the folder for temporary files ({error.strerror}); "
                "make room there, or name another in TMPDIR"
            ) from None

    def again(self) -> JsonlFile:
        """Return the same file, open for as long as the new one is not closed."""
        descriptor = os.dup(self._file.fileno())
        other = JsonlFile(os.fdopen(descriptor, "rb"), self.name, strict=self.strict)
        other._status = self._status  # what has changed since then has changed while it was read
        return other

    def digest(self, *, model: str | None = None) -> bytes:
        """Return what identifies the content, together with the model that replaces the lines' own."""
        state = blake2b(repr(model).encode(), digest_size=16)
        reader = _Reader(self._file.fileno())
        while piece := reader.read(1 << 20):
            state.update(piece)
        return state.digest()

    def lines(self, *, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the lines after number ``after``, each with its number. Blank ones are passed over, but counted.

        Raises InputError where the file cannot be read to its end, or has changed since it was opened.
        """
        self._reader = reader = _Reader(self._file.fileno())
        try:
            for number, raw in enumerate(_raw_lines(io.BufferedReader(reader, READ_BYTES)), start=1):
                if number > after and not raw.isspace():
                    yield number, raw
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read to its end ({error.strerror})") from None
        self.check_unchanged()

    def chunks(self, parser: LineParser, *, after: int = 0) -> Iterator[Chunk]:
        """Read and check the lines after number ``after``. Raises InputError as `lines` does.

        No line of a chunk comes from a file that has changed since it was opened.
        """
        chunk: Chunk = []
        size = 0
        for number, raw in self.lines(after=after):
            chunk.append(parser.from_json(number, raw))
            size += len(raw)
            if size >= CHUNK_BYTES or len(chunk) >= CHUNK_LINES:
                self.check_unchanged()
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def check_unchanged(self) -> None:
        """Raise InputError where the file has changed since it was opened."""
        now = os.fstat(self._file.fileno())
        if (now.st_size, now.st_mtime_ns) != (self._status.st_size, self._status.st_mtime_ns):
            raise InputError(f"{self.name}: changed while it was read; run again when it is complete")

    @property
    def read_bytes(self) -> int:
        """How far the last reading of its lines has come, in bytes."""
        return self._reader.position

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> JsonlFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Reader(io.RawIOBase):
    """Reads a file from its beginning, with a position of its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = os.pread(self._descriptor, len(buffer), self.position)
        buffer[: len(piece)] = piece
        self.position += len(piece)
        return len(piece)


def _raw_lines(file: io.BufferedIOBase) -> Iterator[bytes]:
    """Yield lines. Of one that is too long only its beginning comes, of a length that says so."""
    while raw := file.readline(MAX_LINE_BYTES):
        if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
            while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
        yield raw


async def file_chunks(file: JsonlFile, parser: LineParser, *, after: int = 0) -> AsyncGenerator[Chunk, None]:
    """Read and check a file in a thread, a chunk at a time, from the line after number ``after``.

    Once the first chunk was asked for, ``file`` may be closed.
    """
    with file.again() as own:
        chunks = own.chunks(parser, after=after)
        while chunk := await in_thread(next, chunks, None):
            yield chunk


async def object_chunks(
    requests: Iterable[object] | AsyncIterable[object], parser: LineParser
) -> AsyncGenerator[Chunk, None]:
    """Check requests that a program makes.

    A chunk is what has come since the last one was taken, so that a slow program's requests do not wait for more,
    and a fast one's is asked for a bounded number ahead.
    """
    ready: asyncio.Queue[Line | Fault | None] = asyncio.Queue(CHUNK_LINES // 4)

    async def read() -> None:
        number = 0
        try:
            async for request in each(requests):
                number += 1
                await ready.put(parser.from_object(number, request))
        finally:
            await ready.put(None)

    reader = asyncio.create_task(read())
    try:
        while entry := await ready.get():
            chunk = [entry]
            while not ready.empty() and (entry := ready.get_nowait()):
                chunk.append(entry)
            yield chunk
            if entry is None:
                break
        await reader
    finally:
        reader.cancel()


async def each(requests: Iterable[object] | AsyncIterable[object]) -> AsyncIterator[object]:
    """Yield requests from either kind of iterable."""
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request
