"""Feeds an exporter with what an `Orchestra` and its engines tell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
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

    ``origin`` is as in `CallLog`. All three run in whatever thread an event arises in, must be quick and must not
    block.
    """

    def __init__(
        self,
        client: Client,
        record: Callable[[Measurement], object],
        *,
        ended: Callable[[WholeCall], object] = lambda call: None,
        origin: Callable[[], object] = lambda: None,
    ) -> None:
        self._lock = threading.Lock()
        self._record = record
        self._ended = ended
        self._calls = CallLog(origin=origin)
        self._measuring = Measuring({name: one.kind for name, one in client.config.providers.items()})
        self._stops = [client.events.subscribe(self._call), client.subscribe_engines(self._engine)]

    def close(self) -> None:
        """Hear no more. May be called again."""
        while self._stops:
            self._stops.pop()()

    def _call(self, event: Event) -> None:
        with self._lock:  # no longer than it takes to note: what is done with it is done outside
            measured = [*self._measuring.event(event)]
            if (call := self._calls.add(event)) is not None:
                measured += self._measuring.whole(call.events)
        for one in measured:
            self._record(one)
        if call is not None:
            self._ended(call)

    def _engine(self, name: str, event: EngineEvent) -> None:
        for one in self._measuring.engine(name, event):
            self._record(one)
