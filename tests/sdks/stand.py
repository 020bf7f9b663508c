"""The providers that all SDKs are tried against, in the runner's process, and how a probe in another tells them.

A probe runs where its SDK and we are alone: nothing else that is installed changes how the SDK behaves. What it is
tried against runs outside, and sees its connections as a provider would.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self
from xmlrpc.client import ServerProxy
from xmlrpc.server import SimpleXMLRPCServer

__all__ = ["TEXT", "Stand", "reach"]

TEXT = "Hello, world."
_PIECES = ("Hello", ", ", "world", ".")
_SOON = {"retry-after": "0.01"}


class Stand:
    """Two providers of each wire, and a server by which `reach` tells them what to do.

    What they are told, in turn: ``ok``; ``bad``, 400; ``busy``, 429 for a moment; ``down``, 503; ``late``, an
    answer after 3 seconds; ``slow``, a stream that stands still for 3 seconds before each further piece;
    ``cut``, a stream that breaks off.
    """

    def __enter__(self) -> Self:
        from gemini_server import GeminiServer

        from orchestra.testing import ScriptedProvider
        from orchestra.testing.serving import ServingThread

        self._stack = ExitStack()
        self._scripted = [self._stack.enter_context(ScriptedProvider()) for _ in "12"]
        self._geminis = [GeminiServer() for _ in "12"]
        for server in self._geminis:
            thread = ServingThread(server)
            thread.start_serving()
            self._stack.callback(thread.stop_serving)
        self._told = SimpleXMLRPCServer(("127.0.0.1", 0), logRequests=False, allow_none=True)
        self._told.register_function(self._begin, "begin")
        self._told.register_function(self._seen, "seen")
        listening = threading.Thread(target=self._told.serve_forever, args=(0.05,), daemon=True)
        listening.start()
        self._stack.callback(self._told.server_close)
        self._stack.callback(self._told.shutdown)
        self._used: list[Any] = self._scripted
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._stack.close()

    @property
    def address(self) -> str:
        """What a probe gives to `reach`."""
        host, port = self._told.server_address[:2]
        return f"http://{host!s}:{port}"

    def _begin(self, wire: str, as_json: bool, first: Sequence[str], rest: str) -> list[str]:
        """Let the first provider answer ``first`` in turn and then ``rest``, the second always well.

        ``as_json``: the text of an answer is a JSON object that holds it. Returns where the two are.
        """
        self._used = self._geminis if wire == "gemini" else self._scripted
        reply = _gemini_answer if wire == "gemini" else _scripted_reply(wire, as_json)
        for server, words, default in zip(self._used, (first, ()), (rest, "ok"), strict=True):
            server.script, server.default = deque(map(reply, words)), reply(default)
            server.text = json.dumps({"text": TEXT}) if as_json else TEXT
            server.log = []
        return [server.origin for server in self._used]

    def _seen(self) -> dict[str, Any]:
        """Return what came: requests to each, how many are under way, all headers, and the models asked for."""
        hits = [hit for server in self._used for hit in server.log]
        return {
            "requests": [len(server.log) for server in self._used],
            "in_flight": sum(server.in_flight for server in self._used),
            "headers": json.dumps([dict(hit.headers) for hit in hits]),
        }


def reach(address: str) -> Any:
    """Return what answers ``begin`` and ``seen`` of the `Stand` at that address."""
    return ServerProxy(address, allow_none=True)


def _scripted_reply(wire: str, as_json: bool) -> Callable[[str], Any]:
    from orchestra.testing import Reply, StreamScript

    pieces = ('{"text": "', *_PIECES, '"}') if as_json else _PIECES

    # what opens the JSON shows nothing by itself
    slow = ("".join(pieces[:2]), *pieces[2:]) if as_json else pieces

    def error(status: int, code: str, kind: str) -> Reply:
        headers = {} if status == 400 else _SOON
        if wire == "anthropic":
            return Reply.anthropic_error(status, kind, "look here", headers=headers)
        return Reply.error(status, code, kind=kind, message="look here", headers=headers)

    def reply(word: str) -> Reply:
        match word:
            case "ok":
                return Reply(stream=StreamScript(chunks=pieces))
            case "bad":
                return error(400, "wrong_value", "invalid_request_error")
            case "busy":
                return error(429, "rate_limit_exceeded", "rate_limit_error")
            case "down":
                return error(503, "overloaded", "overloaded_error" if wire == "anthropic" else "server_error")
            case "late":
                return Reply(delay=3)
            case "slow":
                return Reply(stream=StreamScript(chunks=slow, gap=3))
            case "cut":
                return Reply(stream=StreamScript(chunks=pieces, drop_after=3, gap=0.01))
            case _:
                raise ValueError(word)

    return reply


def _gemini_answer(word: str) -> Any:
    from gemini_server import Answer, error

    soon = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.01s"}
    match word:
        case "ok":
            return Answer()
        case "late":
            return Answer(delay=3)
        case "bad":
            return Answer(400, error(400, "INVALID_ARGUMENT"))
        case "busy":
            return Answer(429, error(429, "RESOURCE_EXHAUSTED", "look here", soon))
        case "down":
            return Answer(503, error(503, "UNAVAILABLE", "look here", soon))
        case "slow":
            return Answer(gap=3)
        case "cut":
            return Answer(drop_after=2, gap=0.01)
        case _:
            raise ValueError(word)
