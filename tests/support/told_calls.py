"""Calls as their events tell them: written by hand, or drawn by hypothesis in every order that can happen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from orchestra.observe.events import Event
from orchestra.policies.traffic import TrafficClass

_ids = itertools.count(1)
KINDS = {"main": "openai", "eu": "azure"}
"""Providers, and what kind they are."""


class Teller:
    """Tells the events of one call, each a second after the one before unless ``after`` says otherwise."""

    def __init__(
        self, traffic: TrafficClass = TrafficClass.INTERACTIVE, *, at: float = 100.0, **always: Any
    ) -> None:
        self.at = at
        self._always = {
            "call": f"call-{next(_ids)}",
            "traffic": traffic,
            "operation": "chat",
            "model": "fast",
            **always,
        }

    def __call__(self, kind: Any, route: str = "main/m1", *, after: float = 1.0, **fields: Any) -> Event:
        self.at += after
        return Event(kind=kind, at=self.at, route=route, **{**self._always, **fields})


@st.composite
def calls(draw: st.DrawFn) -> list[Event]:
    """A whole call: attempts that fail, each followed by another, until one settles, breaks, or none is left."""
    tell = Teller(draw(st.sampled_from(TrafficClass)))
    return [*_attempts(draw, tell)]


def _attempts(draw: st.DrawFn, tell: Teller) -> Iterator[Event]:
    routes = st.sampled_from(["main/m1", "main/m2", "eu/m3", "local/own"])
    seconds = st.floats(0, 1e4)
    if draw(st.booleans()):
        yield tell("parked", "")
        if draw(st.booleans()):
            yield tell("settled", "main/m1", input_tokens=draw(st.integers(0, 10**6)), output_tokens=3)
            return
    route = draw(routes)
    for number in range(1, draw(st.integers(1, 5)) + 1):
        if number > 1:
            before, route = route, draw(routes)
            kind = "retried" if route == before else "fell_back"
            yield tell(kind, route, attempt=number, from_route=before, reason="busy", status=503, waited=0.25)
        local = route.startswith("local/")  # an engine queues what was sent to it
        if local:
            yield tell("sent", route, attempt=number)
        yield tell("queued", route, attempt=number)
        waited = draw(seconds)
        yield tell("admitted", route, attempt=number, waited=waited, after=waited)
        if not local:
            yield tell("sent", route, attempt=number)
    match draw(st.sampled_from(["settled", "streamed", "dropped", "failed"])):
        case "settled":
            yield tell("settled", route, attempt=number, status=200, input_tokens=7, output_tokens=2, duration=1.0)
        case "streamed":
            ttft = draw(seconds)
            yield tell("first_byte", route, attempt=number, ttft=ttft, after=ttft)
            yield tell("settled", route, attempt=number, status=200, ttft=ttft, usd=0.5, cached_tokens=4)
        case "dropped":
            yield tell("interrupted", route, attempt=number, reason="dropped", duration=1.0)
        case "failed":
            yield tell("failed", route, attempt=number, reason="busy", status=503, duration=9.0)
