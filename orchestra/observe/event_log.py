"""The events as a file: one JSON object a line, to be read again by `orchestra simulate` and by other programs."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator

from pydantic import TypeAdapter, ValidationError

from orchestra.call import read_json
from orchestra.clock import REAL_TIME, Clock
from orchestra.errors import InputError
from orchestra.observe.events import Event

__all__ = ["EventLog"]

_log = logging.getLogger("orchestra.events")
_EVENT = TypeAdapter(Event)


class EventLog:
    """Appends every event that it is told to the file at ``path``, which is made, for its owner's eyes only::

        log = EventLog("events.jsonl")
        orc.events.subscribe(log)

    A line has the fields of `Event`, with ``at`` in unix time. There is no prompt, answer or key in it. Each is
    written whole and at once, so that several processes may share a file, and one that is killed leaves at most a
    line that is cut short, which `read` passes over. Thread-safe. ``clock`` is that of the events.

    Raises InputError where the file cannot be opened. Where the disk takes no more, it says so once and stops.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock = REAL_TIME) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        try:
            self._file: int | None = os.open(path, flags, 0o600)
        except OSError as error:
            raise InputError(f"{os.fspath(path)}: events cannot be written there ({error.strerror})") from None
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")  # what was cut short stays a line of its own

    def __call__(self, event: Event) -> None:
        told = event.told()
        epoch = self._clock.wall() - self._clock.monotonic()  # it moves where the machine was suspended
        told["at"] = round(epoch + event.at, 6)
        line = json.dumps(told, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._file is None:
                return
            try:
                os.write(self._file, line)
            except OSError as error:
                self._close()
                _log.warning("%s: no more events are written (%s)", os.fspath(self._path), error.strerror)

    def close(self) -> None:
        """Write no more. May be called again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Iterator[Event]:
        """Yield the events of a file, with ``at`` in unix time.

        A line that is no JSON at all was cut short, and is passed over. Raises InputError where the file cannot
        be read, and for a line that is JSON and no event.
        """
        try:
            with open(path, "rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip() and (event := _event(line, f"{os.fspath(path)}:{number}")) is not None:
                        yield event
        except OSError as error:
            raise InputError(f"{os.fspath(path)} cannot be read: {error.strerror}") from None


def _event(line: bytes, place: str) -> Event | None:
    try:
        told = read_json(line)
    except ValueError:
        return None
    try:
        return _EVENT.validate_python({"call": "", **told} if isinstance(told, dict) else told)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise InputError(f"{place} is no event of a log that EventLog writes: {where}: {fault['msg']}") from None
