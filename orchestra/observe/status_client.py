"""Finds the processes of this user that show what they do, and asks them."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra.observe.beacon import FORMAT
from orchestra.observe.status_folder import address, check_folder, folders, read_name, remove_dead

__all__ = ["Sighting", "look_around"]

_LONGEST_ANSWER = 32 << 20
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Sighting:
    """One `Orchestra` of a process: what it told, or why it told nothing.

    ``pid`` and ``instance`` are by the socket's name; a process that lives in a container may tell another pid.
    """

    pid: int
    instance: int
    told: dict[str, Any] | None
    fault: str | None = None


def look_around(*, pid: int | None = None, timeout: float = 2.0) -> list[Sighting]:
    """Return what there is to see, in the order of pids: all, or one process.

    ``timeout`` is how long, in seconds, to wait for whoever is stopped or too busy. What dead processes have left
    behind is removed.
    """
    found = [one for one in _sockets() if pid is None or one[1] == pid]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = list(pool.map(lambda one: _ask(*one, timeout=timeout), found))
    return sorted((one for one in asked if one is not None), key=lambda one: (one.pid, one.instance))


def _sockets() -> Iterator[tuple[Path, int, int]]:
    seen = set()
    for folder in folders():
        try:
            check_folder(folder)
            names = os.listdir(folder)
        except OSError:  # nobody has made it, or somebody else has
            continue
        if (place := os.path.realpath(folder)) in seen:
            continue
        seen.add(place)
        for name in names:
            if (told := read_name(name)) is not None:
                yield folder / name, *told


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with address(self._path) as where:
            self.sock.connect(where)


def _read(response: http.client.HTTPResponse, until: float) -> bytes:
    """Return the whole answer. Raises TimeoutError where it takes too long in all, not only between two parts."""
    parts = bytearray()
    while len(parts) < _LONGEST_ANSWER and (part := response.read1(_LONGEST_ANSWER - len(parts))):
        parts += part
        if time.monotonic() > until:
            raise TimeoutError
    return bytes(parts)


def _ask(path: Path, pid: int, instance: int, *, timeout: float) -> Sighting | None:
    """Return what is told at a socket; None where nobody is there."""
    connection = _Connection(path, timeout)
    try:
        connection.request("GET", "/status")
        response = connection.getresponse()
        told = json.loads(_read(response, time.monotonic() + timeout))
        if isinstance(told, dict) and isinstance(made := told.get("format"), int) and made > FORMAT:
            newer = f"a newer version of orchestra runs there (format {made}, not {FORMAT}): upgrade this one"
            return Sighting(pid, instance, None, newer)
        if response.status == 200 and isinstance(told, dict) and isinstance(told.get("snapshot"), dict):
            return Sighting(pid, instance, told)
        if response.status == 410:
            return None
        fault = told.get("error") if isinstance(told, dict) else None
        return Sighting(pid, instance, None, f"it answered {response.status}: {fault or 'with nothing we know'}")
    except ConnectionRefusedError:
        remove_dead(path)
        return None
    except FileNotFoundError:  # closed in this moment
        return None
    except (TimeoutError, BlockingIOError):  # the latter where very many wait to be answered
        fault = f"no answer within {timeout:g} s: it is stopped, or keeps the interpreter to itself"
        return Sighting(pid, instance, None, fault)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if not path.exists():  # it ended while it was asked
            return None
        return Sighting(pid, instance, None, f"no answer: {str(error) or type(error).__name__}")
    finally:
        connection.close()
