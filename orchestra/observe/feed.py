"""Feeds an exporter with what an `Orchestra` and its engines tell."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from orchestra.config import Config
from orchestra.observe.call_log import CallLog, WholeCall
from orchestra.observe.events import Event, EventBus
from orchestra.observe.measuring import Measurement, Measuring

if TYPE_CHECKING:
    from orchestra.localengine.events import EngineEvent

__all__ = ["Client", "Feed"]


class Client(Protocol):
    """What is asked of an `Orchestra`."""

    config: Config

    @property
    def events(self) -> EventBus: ...
    def snapshot(self) -> Mapping[str, Any]: ...
    def subscribe_engines(self, subscriber: Callable[[str, EngineEvent], object]) -> Callable[[], None]: ...


class Feed:
    """Hands ``record`` every measurement, and ``ended`` every call that is over, until `close`.

    ``origin`` is asked with each event where that comes from, in the thread it arises in: in a trace, its parent.
    The other two run in one thread at a time, whichever is telling something. None may be slow, or block.

    What is told may be told in the midst of anything, also of what an exporter does under a lock of its own, and
    from several threads. So nobody waits here for anybody: all is put down, and who finds nobody at work works on
    what there is.
    """

    def __init__(
        self,
        client: Client,
        record: Callable[[Measurement], object],
        *,
        ended: Callable[[WholeCall], object] = lambda call: None,
        origin: Callable[[], object] = lambda: None,
    ) -> None:
        self._record = record
        self._ended = ended
        self._origin = origin
        self._measuring = Measuring({name: one.kind for name, one in client.config.providers.items()})
        self.begin_anew()
        _feeds.add(self)
        self._stops = [client.events.subscribe(self._hear_call), client.subscribe_engines(self._hear_engine)]

    def begin_anew(self) -> None:
        """Forget the calls under way, and whoever was at work: in a forked child they are the parent's."""
        self._told: deque[Callable[[], None]] = deque()
        self._working = threading.Lock()
        self._calls = CallLog()

    def close(self) -> None:
        """Hear no more. May be called again."""
        while self._stops:
            self._stops.pop()()

    def _hear_call(self, event: Event) -> None:
        self._told.append(partial(self._call, event, self._origin()))
        self._work()

    def _hear_engine(self, name: str, event: EngineEvent) -> None:
        self._told.append(partial(self._engine, name, event))
        self._work()

    def _work(self) -> None:
        # Looked at again after the lock was let go: what came in between found somebody at work.
        while self._told and self._working.acquire(blocking=False):
            try:
                while self._told:
                    self._told.popleft()()
            finally:
                self._working.release()

    def _call(self, event: Event, origin: object) -> None:
        for one in self._measuring.event(event):
            self._record(one)
        if (call := self._calls.add(event, origin)) is not None:
            for one in self._measuring.whole(call.events):
                self._record(one)
            self._ended(call)

    def _engine(self, name: str, event: EngineEvent) -> None:
        for one in self._measuring.engine(name, event):
            self._record(one)


_feeds: weakref.WeakSet[Feed] = weakref.WeakSet()


def _begin_anew() -> None:
    for feed in list(_feeds):
        feed.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
