"""The network of a simulation: every request is answered here, after as long as it would take."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from orchestra.call import Body, Headers
from orchestra.config import Config
from orchestra.dispatch.accounts import Account
from orchestra.errors import ConnectionFailed
from orchestra.providers import Endpoint, endpoint_at
from orchestra.simulate.batch_endpoint import BatchEndpoint
from orchestra.simulate.outside import EVERYBODY, Outside
from orchestra.simulate.times import Times
from orchestra.simulate.virtual_loop import VirtualLoop
from orchestra.simulate.wording import answer, told_in
from orchestra.testing.forms import most_output
from orchestra.testing.limiter import Limiter
from orchestra.testing.openai_form import LIMIT_HEADER, limit_headers
from orchestra.wire import WireResponse

__all__ = ["SimulatedWire"]

T = TypeVar("T")

_ROUND_TRIP = 0.05
"""Seconds after which a refusal is there, and whatever else needs no model."""
_TTFT, _TPOT, _BATCH = Times.parse("400ms:p50,1500ms:p95"), Times.parse("15ms"), Times.parse("40m:p50,4h:p95")


@dataclass(slots=True)
class _Place:
    """A provider, as far as it can be seen from here."""

    name: str
    url: str
    ttft: Times
    tpot: Times
    failing: float
    batches: BatchEndpoint
    limiter: Limiter | None
    tells_limits: bool
    is_timed: bool
    """Whether it was said how fast it is: then that holds for recorded calls, too."""
    in_flight: int = 0


class SimulatedWire:
    """Stands where the network would, for the providers of ``config`` as ``outside`` has them.

    ``second`` tells the second of the first day. Raises ConnectionFailed as a wire does, and for a host that is
    none of the settings'.
    """

    def __init__(self, config: Config, outside: Outside, loop: VirtualLoop, second: Callable[[], float]) -> None:
        self._loop = loop
        self._second = second
        self._dice = random.Random(loop.dice.random())
        self._outages = outside.outages
        self._busy = 0
        places = []
        for name, one in config.providers.items():
            allows = _said(outside.allows, name)
            places.append(
                _Place(
                    name=name,
                    url=f"{Account(name, one).place}/",
                    ttft=_said(outside.ttft, name) or _TTFT,
                    tpot=_said(outside.tpot, name) or _TPOT,
                    failing=_said(outside.failing, name) or 0.0,
                    batches=BatchEndpoint(one.kind, _said(outside.batch_time, name) or _BATCH, loop),
                    limiter=None if allows is None else Limiter(allows, clock=loop.time),
                    # the others tell when a limit is full as a time of day, and by real clocks
                    tells_limits=one.kind not in ("anthropic", "gemini"),
                    is_timed=any(_said(times, name) is not None for times in (outside.ttft, outside.tpot)),
                )
            )
        # the most specific first: one address may be part of another
        self._places = sorted(places, key=lambda place: -len(place.url))
        self._place_of = lru_cache(maxsize=4096)(self._find)

    async def send(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: Body,
        *,
        connect_timeout: float | None,
        read_timeout: float | None,
    ) -> WireResponse:
        place, parts = self._place_of(url)
        self._busy += 1
        place.in_flight += 1
        try:
            if self._is_down(place):
                await asyncio.sleep(_ROUND_TRIP)
                return _response(503, _error("service_unavailable"))
            if isinstance(body, bytes) and method == "POST" and endpoint_at(parts.path) is not Endpoint.OTHER:
                return await self._answer(place, parts.path, body, read_timeout)
            await asyncio.sleep(_ROUND_TRIP)
            return await place.batches.send(method, parts, headers, body)
        finally:
            place.in_flight -= 1
            self._busy -= 1

    async def _answer(self, place: _Place, path: str, body: bytes, read_timeout: float | None) -> WireResponse:
        payload = json.loads(body)
        told = told_in(payload)
        seconds = told.seconds
        if seconds is None or place.is_timed:
            seconds = place.ttft.draw(self._dice) + place.tpot.draw(self._dice) * told.output
        headers: dict[str, str] = {}
        if place.limiter is not None:
            # what a limit counts, and tells, is a little older than what is known here
            way = min(_ROUND_TRIP, seconds) / 2 * (0.5 + self._dice.random())
            await asyncio.sleep(way)
            seconds -= way
            refusal, headers = self._admit(place, place.limiter, told.prompt, most_output(payload))
            if refusal is not None:
                await asyncio.sleep(way)
                return refusal
        if place.failing and self._dice.random() < place.failing:
            await asyncio.sleep(min(seconds, place.ttft.draw(self._dice)))
            return _response(500, _error("server_error"), headers)
        if read_timeout is not None and seconds > read_timeout:
            await asyncio.sleep(read_timeout)
            raise ConnectionFailed(f"{place.name}: no answer within {read_timeout:g}s", sent=True, timed_out=True)
        await asyncio.sleep(seconds)
        if place.limiter is not None:
            place.limiter.settle(told.prompt, most_output(payload), told.output)
        return _response(200, answer(path, payload, told), headers)

    def _admit(
        self, place: _Place, limiter: Limiter, prompt: int, most: int
    ) -> tuple[WireResponse | None, dict[str, str]]:
        """Let the provider's own limit decide. Returns its refusal, if it is one, and what headers tell."""
        wait = limiter.admit(prompt, most, place.in_flight)
        headers = {}
        if place.tells_limits and limiter.limits.headers == "limits":
            headers = limit_headers(limiter.gauges())
        if wait is None:
            return None, headers
        hint = limiter.hint(wait, LIMIT_HEADER)
        return _response(429, _error("rate_limit_exceeded"), {**headers, **hint}), headers

    def _is_down(self, place: _Place) -> bool:
        second = self._second()
        return any(one.provider in (EVERYBODY, place.name) and one.covers(second) for one in self._outages)

    def _find(self, url: str) -> tuple[_Place, SplitResult]:
        for place in self._places:
            if url.startswith(place.url):
                return place, urlsplit(url)
        raise ConnectionFailed(f"{urlsplit(url).netloc} is no provider of the settings", sent=False)

    async def aclose(self) -> None:
        """There is nothing to close."""

    def busy(self) -> int:
        return self._busy


def _said(of: Mapping[str, T], name: str) -> T | None:
    return of.get(name, of.get(EVERYBODY))


def _error(code: str) -> bytes:
    return json.dumps({"error": {"message": "simulated", "type": code, "code": code}}).encode()


def _response(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> WireResponse:
    async def pieces() -> AsyncIterator[bytes]:
        yield body

    async def close() -> None:
        pass

    lines = tuple((headers or {}).items())
    return WireResponse(status, (("content-type", "application/json"), *lines), pieces(), close)
