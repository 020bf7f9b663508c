"""Makes an `Orchestra` visible to ``orchestra status``: it answers at a local socket what it is doing.

The sockets of a process are served by one thread, which is there while one of them is open. It is nobody's event
loop, so what a blocked loop leaves behind can still be looked at. Nothing here ever raises into the application:
where there can be no socket the instance is not seen, and a debug message says why.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import sys
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from orchestra.observe.status_folder import address, folders, make_folder, read_name, remove_dead, socket_name
from orchestra.observe.status_server import StatusServer

__all__ = ["FORMAT", "Beacon", "program_name"]

FORMAT = 1
"""Of what is answered. It rises when a reader of an earlier one could no longer make sense of it."""

_BACKLOG = 16
_log = logging.getLogger(__name__)


class Owner(Protocol):
    def snapshot(self) -> Mapping[str, Any]: ...


class Beacon:
    """Shows ``owner`` from now until `close`, or until it is forgotten or the process ends.

    ``config`` is the file that the settings are from. The owner's ``snapshot`` is called in the serving thread,
    and it is not kept alive. A forked child shows nothing: it makes a beacon of its own.
    """

    def __init__(self, owner: Owner, *, config: str | None = None) -> None:
        self._put_out: weakref.finalize[Any, Any] | None = None
        try:
            listener, path, number = _listen()
        except Exception as error:
            _log.debug("`orchestra status` will not see this: %s", error)
            return
        about = {
            "format": FORMAT,
            "pid": os.getpid(),
            "instance": number,
            "program": program_name(),
            "config": config,
        }
        tell = partial(_tell, about, time.monotonic(), weakref.ref(owner))
        server = _server
        self._put_out = weakref.finalize(owner, _put_out, os.getpid(), path, server, listener)
        try:
            server.open(listener, tell)
        except Exception as error:  # no thread can be started
            _log.debug("`orchestra status` will not see this: %s", error)
            self.close()

    def close(self) -> None:
        """Show it no longer. May be called again."""
        if self._put_out is not None:
            self._put_out()


def program_name() -> str:
    """Return what was started, in a word or two: no arguments, which may hold secrets."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name:
        return f"python -m {spec.name.removesuffix('.__main__')}"
    started = sys.argv[0] if getattr(sys, "argv", None) else ""
    if started in {"", "-"}:
        return "python"
    return "python -c" if started == "-c" else os.path.basename(started)


def _listen() -> tuple[socket.socket, Path, int]:
    """Return a socket that listens, its path and its number, in the first folder that will do."""
    trouble: Exception = OSError("this platform has no Unix sockets")
    for folder in folders():
        try:
            make_folder(folder)
            _sweep(folder)
            return _listen_in(folder)
        except OSError as error:
            trouble = error
    raise trouble


def _listen_in(folder: Path) -> tuple[socket.socket, Path, int]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        for number in itertools.islice(_numbers, 1000):
            path = folder / socket_name(os.getpid(), number)
            # One that had our number may have died, or may live in a container, which numbers its own.
            if os.path.lexists(path) and not remove_dead(path):
                continue
            with address(path) as where, suppress(FileExistsError):
                listener.bind(where)
                os.chmod(path, 0o600)
                listener.listen(_BACKLOG)
                return listener, path, number
        raise OSError(f"no name is free in {folder}")
    except BaseException:
        listener.close()
        raise


def _sweep(folder: Path) -> None:
    """Remove what processes have left behind that were killed."""
    for name in os.listdir(folder):
        if (told := read_name(name)) is not None:
            try:
                os.kill(told[0], 0)
            except ProcessLookupError:
                remove_dead(folder / name)
            except OSError:
                pass


def _tell(about: Mapping[str, Any], since: float, owner: weakref.ref[Owner]) -> dict[str, Any] | None:
    """Return all that there is to say, or None where the owner is no more."""
    instance = owner()
    if instance is None:
        return None
    return {**about, "uptime": time.monotonic() - since, "snapshot": instance.snapshot()}


def _put_out(pid: int, path: Path, server: StatusServer, listener: socket.socket) -> None:
    """May run as a finalizer, in the midst of anything: takes no lock, waits for nobody."""
    if os.getpid() != pid:  # a forked child: all of it is its parent's
        return
    with suppress(OSError):
        path.unlink()
    server.close(listener)


_numbers = itertools.count(1)
_server = StatusServer()


def _forget_all() -> None:
    """In a forked child: what is shown is the parent's to show."""
    global _numbers, _server
    before, _server = _server, StatusServer()
    _numbers = itertools.count(1)
    before.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _server.hold(),
        after_in_parent=lambda: _server.let_go(),
        after_in_child=_forget_all,
    )
