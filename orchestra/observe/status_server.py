"""The thread that answers at the local sockets of a process: a very small HTTP server.

HTTP, so that ``curl --unix-socket PATH http://localhost/status`` will do. One request a connection: GET /status,
answered with JSON. Whoever connects gets little time and little room, and is waited for by nobody.
"""

from __future__ import annotations

import _thread
import errno
import json
import logging
import math
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

__all__ = ["StatusServer", "Tell"]

Tell = Callable[[], Mapping[str, Any] | None]
"""Returns what to answer, or None where there is nothing any more."""

LONGEST_REQUEST = 4096
LONGEST_ANSWER = 16 << 20
MOST_CONNECTIONS = 16
PATIENCE = 2.0
"""Seconds that one connection may take in all."""
_HOLD_SECONDS = 0.5
_NO_FILES_SECONDS = 0.1

_log = logging.getLogger(__name__)


class StatusServer:
    """Answers at any number of listening sockets, in one daemon thread that ends with the last of them.

    `open` and `close` wait for nothing, and `close` may be called from a finalizer: both only post what is to be
    done, and the thread does it.
    """

    def __init__(self) -> None:
        self._posts: deque[tuple[socket.socket, Tell | None]] = deque()
        self._running = threading.Lock()  # up while there is a thread
        self._working = threading.Lock()  # taken whenever the thread does more than wait
        self._holding: set[int] = set()
        self._waker: socket.socket | None = None
        self._desk: _Desk | None = None

    def open(self, listener: socket.socket, tell: Tell) -> None:
        """Answer at ``listener``, which is this server's from now on. Raises RuntimeError without a thread."""
        self._posts.append((listener, tell))
        try:
            self._stir()
        except BaseException:
            listener.close()
            raise

    def close(self, listener: socket.socket) -> None:
        """Answer there no longer, and close it."""
        self._posts.append((listener, None))
        try:
            self._stir()
        except RuntimeError:  # no thread, and none to be had: the process ends
            listener.close()

    def hold(self) -> None:
        """Let no answer be under way, so that a fork finds the locks behind a snapshot free; see `let_go`."""
        if self._working.acquire(timeout=_HOLD_SECONDS):
            self._holding.add(threading.get_ident())

    def let_go(self) -> None:
        """Go on answering."""
        if (thread := threading.get_ident()) in self._holding:
            self._holding.remove(thread)
            self._working.release()

    def abandon(self) -> None:
        """In a forked child: close what was inherited, so that it does not look as if somebody listened."""
        sockets = [listener for listener, _ in self._posts]
        if self._desk is not None:
            sockets += self._desk.sockets()
            self._desk.selector.close()  # and nothing more: what it watches is watched for the parent, too
        if self._waker is not None:
            sockets.append(self._waker)
        for one in sockets:
            one.close()

    def _stir(self) -> None:
        if self._running.acquire(blocking=False):  # whoever raises the flag starts the thread, which lowers it
            try:
                _thread.start_new_thread(self._run, ())  # a daemon, and not waited for
            except BaseException:
                self._running.release()
                raise
        elif (waker := self._waker) is not None:
            with suppress(OSError):  # full, so it wakes anyhow; or closed, so the posts are looked at once more
                waker.send(b"\0")

    def _run(self) -> None:
        again = True
        while again:
            try:
                self._serve()
            except Exception:
                _log.debug("the status server failed", exc_info=True)
                while self._posts:
                    self._posts.popleft()[0].close()
            self._running.release()
            again = bool(self._posts) and self._running.acquire(blocking=False)

    def _serve(self) -> None:
        ours, self._waker = socket.socketpair()
        ours.setblocking(False)
        self._waker.setblocking(False)
        self._desk = desk = _Desk(ours)
        try:
            while True:
                with self._working:
                    while self._posts:
                        listener, tell = self._posts.popleft()
                        if tell is None:
                            desk.remove(listener)
                        else:
                            desk.add(listener, tell)
                if not desk.listeners:
                    return
                ready = desk.wait()
                with self._working:
                    desk.step(ready)
        finally:
            waker, self._waker, self._desk = self._waker, None, None
            waker.close()
            desk.close()


class _Connection:
    __slots__ = ("answer", "expires_at", "request", "socket", "tell")

    def __init__(self, accepted: socket.socket, tell: Tell) -> None:
        self.socket = accepted
        self.tell = tell
        self.expires_at = time.monotonic() + PATIENCE
        self.request = bytearray()
        self.answer: memoryview | None = None


class _Desk:
    """What the thread works on: listeners, and the connections that were accepted."""

    def __init__(self, waker: socket.socket) -> None:
        self.selector = selectors.DefaultSelector()
        self.selector.register(waker, selectors.EVENT_READ)
        self.listeners: dict[socket.socket, Tell] = {}
        self.connections: dict[socket.socket, _Connection] = {}
        self._waker = waker

    def sockets(self) -> list[socket.socket]:
        return [self._waker, *self.listeners, *self.connections]

    def add(self, listener: socket.socket, tell: Tell) -> None:
        if listener.fileno() >= 0:
            self.selector.register(listener, selectors.EVENT_READ)
            self.listeners[listener] = tell

    def remove(self, listener: socket.socket) -> None:
        if self.listeners.pop(listener, None) is not None:
            self.selector.unregister(listener)
        listener.close()

    def close(self) -> None:
        for one in self.sockets():
            one.close()
        self.selector.close()

    def wait(self) -> list[Any]:
        """Return the sockets at which something can be done, once there are some or somebody's time is up."""
        soonest = min((one.expires_at for one in self.connections.values()), default=None)
        wait = None if soonest is None else max(0.0, soonest - time.monotonic())
        return [key.fileobj for key, _ in self.selector.select(wait)]

    def step(self, ready: list[Any]) -> None:
        """Do what can be done."""
        for one in ready:
            if one is self._waker:
                with suppress(OSError):
                    one.recv(4096)
            elif (tell := self.listeners.get(one)) is not None:
                self._accept(one, tell)
            elif (connection := self.connections.get(one)) is not None:
                self._go_on(connection)
        now = time.monotonic()
        for connection in [one for one in self.connections.values() if one.expires_at <= now]:
            self._drop(connection)

    def _accept(self, listener: socket.socket, tell: Tell) -> None:
        try:
            accepted, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # it stays ready, and we would go round and round
                time.sleep(_NO_FILES_SECONDS)
            return
        if len(self.connections) >= MOST_CONNECTIONS or not _may_ask(accepted):
            accepted.close()
            return
        accepted.setblocking(False)
        self.selector.register(accepted, selectors.EVENT_READ)
        self.connections[accepted] = _Connection(accepted, tell)

    def _go_on(self, connection: _Connection) -> None:
        try:
            if connection.answer is None:
                self._read(connection)
            else:
                connection.answer = connection.answer[connection.socket.send(connection.answer) :]
                if not connection.answer:
                    self._drop(connection)
        except BlockingIOError:
            pass
        except Exception:  # whoever it was, it is gone
            self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        received = connection.socket.recv(LONGEST_REQUEST)
        connection.request += received
        if not received or len(connection.request) > LONGEST_REQUEST:
            self._drop(connection)
        elif b"\r\n\r\n" in connection.request:
            connection.answer = memoryview(_answer(bytes(connection.request), connection.tell))
            connection.expires_at = time.monotonic() + PATIENCE
            self.selector.modify(connection.socket, selectors.EVENT_WRITE)

    def _drop(self, connection: _Connection) -> None:
        if self.connections.pop(connection.socket, None) is not None:
            self.selector.unregister(connection.socket)
        connection.socket.close()


def _may_ask(accepted: socket.socket) -> bool:
    """Return whether the other side is this user, or root. Where none can tell, the folder keeps others out."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    try:
        peer = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    except OSError:
        return False
    _, user, _ = struct.unpack("iII", peer)
    return user in (os.geteuid(), 0)


def _answer(request: bytes, tell: Tell) -> bytes:
    """Return the whole answer to a request. Raises nothing."""
    status, told = _respond(request, tell)
    body = json.dumps(told, separators=(",", ":"), default=str).encode()
    if len(body) > LONGEST_ANSWER:
        status, body = HTTPStatus.INTERNAL_SERVER_ERROR, b'{"error":"there is too much to tell"}'
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Connection: close\r\n\r\n"
    )
    return head.encode() + body


def _respond(request: bytes, tell: Tell) -> tuple[HTTPStatus, Any]:
    words = request.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return HTTPStatus.BAD_REQUEST, {"error": "this is no HTTP request"}
    if words[:2] != [b"GET", b"/status"]:
        return HTTPStatus.NOT_FOUND, {"error": "there is only GET /status"}
    try:
        told = _plain(tell())
    except Exception as error:
        _log.debug("there is no snapshot", exc_info=True)
        return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"there is no snapshot: {type(error).__name__}"}
    return (HTTPStatus.GONE, {"error": "it is no more"}) if told is None else (HTTPStatus.OK, told)


def _plain(value: Any) -> Any:
    """Return the value as JSON can tell it: what is not finite is null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
