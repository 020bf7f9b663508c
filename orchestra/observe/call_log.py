"""The events of calls that are under way, gathered by call until each is over."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from orchestra.observe.events import Event
from orchestra.observe.measuring import LOCAL

__all__ = ["CallLog", "WholeCall", "began_at", "begins_call"]

MOST_CALLS = 100_000
MOST_EVENTS = 256
"""Of one call: a bulk line may be tried again for a day."""

_FINAL = frozenset({"settled", "failed", "batch_ended"})
_FIRST = frozenset({"parked", "retried", "fell_back", "failed", "batch_ended"})


@dataclass(frozen=True, slots=True)
class WholeCall:
    """All that is known of a call: its events in their order, and where it came from."""

    origin: object = None
    events: list[Event] = field(default_factory=list)


class CallLog:
    """Gathers events, and gives a call's events back once it is over. Not thread-safe.

    What is held is bounded: of too many calls the oldest is forgotten, of too many events of one call the middle.
    """

    def __init__(self, *, most_calls: int = MOST_CALLS, most_events: int = MOST_EVENTS) -> None:
        self._open: OrderedDict[str, WholeCall] = OrderedDict()
        self._most_calls = most_calls
        self._most_events = most_events

    def __len__(self) -> int:
        return len(self._open)

    def add(self, event: Event, origin: object = None) -> WholeCall | None:
        """Take the next event. Returns its call where this one ends it.

        ``origin`` is where the event comes from, in a trace its parent: a call's is that of its first event.
        """
        call = self._open.get(event.call)
        if call is None:
            if not begins_call(event):
                return None
            call = self._open[event.call] = WholeCall(origin)
            if len(self._open) > self._most_calls:
                self._open.popitem(last=False)
        if len(call.events) >= self._most_events:
            del call.events[self._most_events // 2]
        call.events.append(event)
        # An attempt that another one has outrun is not the end of its call.
        if event.kind in _FINAL or (event.kind == "interrupted" and event.reason != "outrun"):
            del self._open[event.call]
            return call
        return None


def begins_call(event: Event) -> bool:
    """Return whether a call may begin with it. Others are late words.

    They are of an attempt that was outrun, or of an engine: it takes in what was sent to it, and may say so when
    the call was given up meanwhile.
    """
    match event.kind:
        case "queued":
            return event.attempt == 1 and not event.route.startswith(f"{LOCAL}/")
        case "sent":
            return event.attempt == 1
        case "interrupted":
            return event.attempt is None
        case kind:
            return kind in _FIRST


def began_at(event: Event) -> float:
    """Return when the call began whose first event this is.

    One that was given up before its first attempt is told of only then, with how long it took.
    """
    return event.at - (event.duration or 0.0) if event.kind in ("failed", "interrupted") else event.at
