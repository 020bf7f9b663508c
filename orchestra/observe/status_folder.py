"""Where the processes of a user put the sockets that ``orchestra status`` asks, and how they are named.

The folder is ``orchestra`` in ``$ORCHESTRA_RUNTIME_DIR``; where that is not set, ``orchestra`` in the user's
runtime folder (``$XDG_RUNTIME_DIR``, or /run/user/UID), or ``orchestra-UID`` among the temporary files. Whoever
looks, looks into all of these: a process that cron has started knows less of its surroundings than one of a shell.
Anybody may write to the folder for temporary files, so a folder counts only where it is a real one, the user's
own, and closed to everybody else.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = [
    "FOLDER_VARIABLE",
    "address",
    "check_folder",
    "folders",
    "make_folder",
    "read_name",
    "remove_dead",
    "socket_name",
]

FOLDER_VARIABLE = "ORCHESTRA_RUNTIME_DIR"

_NEWBORN_SECONDS = 1.0
"""A socket is there a moment before it listens, and looks dead in it."""

_NAME = re.compile(r"(\d{1,10})-(\d{1,10})\.sock")
_LONGEST_PATH = 107 if sys.platform == "linux" else 103
"""Bytes of a path that a socket's address has room for: see unix(7) and unix(4)."""


def folders() -> list[Path]:
    """Return where sockets may be, the best place first. Empty where the platform has no such sockets."""
    if not hasattr(socket, "AF_UNIX") or not hasattr(os, "geteuid"):
        return []
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return [Path(named).absolute() / "orchestra"]
    user = os.geteuid()
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{user}")
    found = [runtime / "orchestra"] if runtime.is_absolute() and runtime.is_dir() else []
    found += [Path(place).absolute() / f"orchestra-{user}" for place in (tempfile.gettempdir(), "/tmp")]
    return list(dict.fromkeys(found))


def make_folder(folder: Path) -> None:
    """Make the folder where it is missing. Raises OSError where it cannot be had, or is not safe."""
    try:
        check_folder(folder)
    except FileNotFoundError:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        check_folder(folder)


def check_folder(folder: Path) -> None:
    """Raise FileNotFoundError where the folder is missing, PermissionError where it is not safe."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{folder} is no folder, or a link to one")
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")
    if status.st_mode & 0o077:
        raise PermissionError(f"{folder} is open to other users; `chmod 700` closes it")


def socket_name(pid: int, number: int) -> str:
    """Return the name of a process's ``number``-th socket."""
    return f"{pid}-{number}.sock"


def read_name(name: str) -> tuple[int, int] | None:
    """Return the process and the number that a socket's name tells, or None where it is no such name."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


@contextmanager
def address(path: Path) -> Iterator[str]:
    """Yield what to bind or connect a socket to for ``path``, however long that is.

    Raises OSError where it is too long and there is no way round.
    """
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    opened = Path("/proc/self/fd")
    if not opened.is_dir():
        raise OSError(f"{path} is too long for a socket")
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield str(opened / str(folder) / path.name)
    finally:
        os.close(folder)


def remove_dead(path: Path) -> bool:
    """Remove the socket where nobody listens at it any more. Return whether it is gone.

    Its process was killed, or has lost its machine. Numbers of processes tell nothing: containers have their own.
    """
    try:
        status = path.lstat()
        if not stat.S_ISSOCK(status.st_mode) or time.time() - status.st_mtime < _NEWBORN_SECONDS:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, address(path) as where:
            probe.setblocking(False)
            probe.connect(where)
    except FileNotFoundError:
        return True
    except ConnectionRefusedError:
        with suppress(FileNotFoundError):
            path.unlink()
        return True
    except OSError:  # it is busy
        pass
    return False
