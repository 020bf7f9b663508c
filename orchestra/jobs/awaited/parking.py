"""The way of awaited calls that have time: into a batch where that is worth it, or out by themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from orchestra.batches import BatchDesk, BatchRoute
from orchestra.call import Call, Outcome, Usage
from orchestra.errors import AllRoutesFailed, InputError, JobError, JobLocked
from orchestra.jobs.awaited.awaited import Awaited, Lot, request_digest
from orchestra.jobs.awaited.leftovers import fresh_name, leftovers
from orchestra.jobs.awaited.post import OwnLoop, Post
from orchestra.jobs.ledger.job_name import checked_name
from orchestra.jobs.ledger.record import End, Result
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.ledger.threads import in_thread
from orchestra.jobs.sending.runner import Price, Send
from orchestra.jobs.sending.verdict import judge_answer
from orchestra.policies.diversion import SyncPace, choose
from orchestra.policies.traffic import TrafficClass
from orchestra.transports.loop_thread import LoopEnded

__all__ = ["Parking"]

T = TypeVar("T")

_KNOWN_FOR = 5.0
_CLOSED = "the Orchestra was closed while the call waited for its batch, which goes on: run this again to join it"


class Parking:
    """Takes awaited bulk calls with a deadline.

    ``store`` opens the ledger; ``loop`` returns the loop on which batches are carried, ``desk`` makes what takes
    them there; ``send`` takes a call that goes by itself, ``price`` says what its answer cost; ``tell`` is told
    what happens to one that rides, in the kinds of `orchestra.observe.events`. ``clock`` is that of
    `Call.expires_at`.
    """

    def __init__(
        self,
        *,
        store: Callable[[], JobStore],
        loop: Callable[[], OwnLoop],
        desk: BatchDesk,
        send: Send,
        price: Price,
        tell: Callable[..., None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._loop = loop
        self._desk = desk
        self._send = send
        self._price = price
        self._clock = clock
        self._tell: Callable[..., object] = tell or (lambda *told, **fields: None)
        self._lots: dict[str, Lot] = {}
        self._unnamed: dict[str, Lot] = {}
        self._fresh = ""  # which of those is for calls that nobody made before
        self._leftovers: dict[int, str] | None = None  # jobs of earlier programs, which are opened when asked for
        self._opening = asyncio.Lock()
        self._at_home: asyncio.AbstractEventLoop | None = None
        self._p90s: dict[str, tuple[float, float | None]] = {}
        self._post: Post | None = None

    def routes(self, call: Call) -> list[BatchRoute]:
        """Return where the call may ride in time; nowhere, where it is to be sent like any other."""
        if call.traffic is not TrafficClass.BULK or call.expires_at is None or not call.payload or call.streams:
            return []
        routes = [route for route in self._desk.routes(call) if route.takes(call.payload)]
        if all(_outlet(route) in self._p90s for route in routes) and not self._is_worth(call, routes):
            return []
        return routes  # as long as the ledger was not asked how long batches take, `send` is who decides

    async def send(self, call: Call, routes: Sequence[BatchRoute]) -> Outcome:
        """Answer a call that may ride along ``routes``, as if it had been sent.

        Raises as the ordinary way does, DeadlineExceeded when its deadline passes, InputError where no job can be
        called as its is, and JobError.
        """
        if call.job is not None:
            checked_name(call.job)
        post, place, took = self._posted(), _Place(), False
        try:
            result = await self._ride(post, place, call, routes)
            if result is None:
                outcome, took = await self._by_itself(post, place, call)
                return outcome
            took = True
            return _outcome(result)
        finally:
            # only here it is known that the answer has reached its caller, or that nobody took it
            if not place.is_void:
                with suppress(LoopEnded):
                    post.bring(lambda: place.settle(took))

    def _posted(self) -> Post:
        """Return what brings work to our loop."""
        loop, post = self._loop(), self._post
        if post is None or post.loop is not loop:
            post = self._post = Post(loop)
        return post

    async def _ride(self, post: Post, place: _Place, call: Call, routes: Sequence[BatchRoute]) -> Result | None:
        """Wait as `_wait` does, and tell of it."""
        began = self._clock()
        self._tell("parked", call)
        try:
            result = await _done(post, lambda: self._wait(place, call, routes))
        except asyncio.CancelledError:
            self._tell("interrupted", call, reason="cancelled", duration=self._clock() - began)
            raise
        except Exception as error:
            self._tell("failed", call, reason=type(error).__name__, duration=self._clock() - began)
            raise
        if result is not None:
            self._tell(
                "settled" if result.ok else "failed",
                call,
                result.route or "",
                reason=result.error_code,
                status=result.status_code,
                certainty="known" if result.ok else None,
                input_tokens=result.input_tokens if result.ok else None,
                output_tokens=result.output_tokens if result.ok else None,
                usd=result.usd,
                duration=self._clock() - began,
            )
        return result

    async def _by_itself(self, post: Post, place: _Place, call: Call) -> tuple[Outcome, bool]:
        """Send a call. Returns what came of it, and whether that is the end of its line."""
        outcome = await self._send(call)
        if place.lot is None or place.awaited is None:
            return outcome, False
        lot, number = place.lot, place.awaited.number
        body = await outcome.read()
        verdict = judge_answer(number, outcome, body)
        if isinstance(verdict, End):
            end = replace(verdict, usd=self._price(outcome))
            await _done(post, lambda: lot.record(end))
        told = Outcome(outcome.status, outcome.headers, _once(body), outcome.route, outcome.usage)
        return told, isinstance(verdict, End)

    # on our loop

    async def _wait(self, place: _Place, call: Call, routes: Sequence[BatchRoute]) -> Result | None:
        """Return the end of the call's line; None where it is to go by itself."""
        try:
            return await self._reached(place, call, routes)
        finally:
            place.is_void = place.awaited is None

    async def _reached(self, place: _Place, call: Call, routes: Sequence[BatchRoute]) -> Result | None:
        if (loop := asyncio.get_running_loop()) is not self._at_home:  # at first, after the end, and in a fork
            self._lots, self._unnamed, self._leftovers, self._opening = {}, {}, None, asyncio.Lock()
            self._at_home = loop
        async with self._opening:  # who came first sits down first
            await self._learn(routes)
            if not self._is_worth(call, routes):
                return None
            deadline, digest = self._deadline(call), request_digest(routes[0], call)
            nth: int | None = None
            if call.job is None:
                lot, nth = await self._unnamed_lot(digest)
            else:
                lot = await self._named_lot(call.job)
        awaited = await lot.wait(call, digest, routes, deadline, nth)
        place.reach(lot, awaited)
        return awaited.result

    async def _named_lot(self, name: str) -> Lot:
        lot = self._lots.get(name)
        if lot is not None and lot.fault is not None:
            await lot.aclose()
            lot = None
        if lot is None:
            store = await in_thread(self._store)
            lot = self._lots[name] = await Lot.open(store, name, self._desk, keeps_all=True)
        return lot

    async def _unnamed_lot(self, digest: bytes) -> tuple[Lot, int | None]:
        """Return where the request is to wait, and as which asking, where somebody has asked before in vain."""
        await self._drop_failed()
        for lot in self._unnamed.values():
            if (nth := lot.forsaken(digest)) is not None:
                return lot, nth
        if self._leftovers is None:
            self._leftovers = await in_thread(lambda: leftovers(self._store()))
        if left := self._leftovers:
            for job, nth in await in_thread(lambda: self._store().awaited.unhanded_of(digest, list(left))):
                try:
                    found = await self._opened_unnamed(left[job])
                except JobLocked:
                    continue  # its program still runs
                if found.claim(digest, nth):
                    return found, nth
        if self._fresh not in self._unnamed:
            self._fresh = fresh_name()
        return await self._opened_unnamed(self._fresh), None

    async def _opened_unnamed(self, name: str) -> Lot:
        if name not in self._unnamed:
            store = await in_thread(self._store)
            self._unnamed[name] = await Lot.open(store, name, self._desk, keeps_all=False)
        return self._unnamed[name]

    async def _drop_failed(self) -> None:
        """Close the unnamed lots that have failed. They would fail again, and are left to the next program."""
        for lot in [lot for lot in self._unnamed.values() if lot.fault is not None]:
            if lot.has_failed and self._leftovers:
                self._leftovers = {job: name for job, name in self._leftovers.items() if name != lot.name}
            await lot.aclose()
            self._unnamed.pop(lot.name, None)

    def _is_worth(self, call: Call, routes: Sequence[BatchRoute]) -> bool:
        """Return whether the call had better ride, by what is known of how long batches take."""
        outlets = [route.outlet(self._p90s[_outlet(route)][1]) for route in routes]
        return choose(self._deadline(call), self._desk.wall(), outlets, SyncPace(), 1).outlet is not None

    def _deadline(self, call: Call) -> float:
        return self._desk.wall() + (call.expires_at or 0.0) - self._clock()

    async def _learn(self, routes: Sequence[BatchRoute]) -> None:
        """Look up how long batches took, as of a moment ago: the ledger need not be asked for every call."""
        now = self._desk.wall()
        for outlet in {_outlet(route) for route in routes}:
            if now >= self._p90s.get(outlet, (0.0, None))[0]:
                store = await in_thread(self._store)
                self._p90s[outlet] = now + _KNOWN_FOR, await in_thread(store.batches.p90, outlet)

    async def aclose(self) -> None:
        """Leave all batches to the next run, and give the jobs back.

        May be called again: where it was cancelled, that finishes what it began.
        """
        if self._lots or self._unnamed:
            await _done(self._posted(), self._close)

    async def _close(self) -> None:
        lots = [*self._lots.values(), *self._unnamed.values()]
        if ends := [lot.end() for lot in lots]:  # all begin before any is waited for
            await asyncio.wait(ends)
        self._lots = {name: lot for name, lot in self._lots.items() if lot not in lots}
        self._unnamed = {name: lot for name, lot in self._unnamed.items() if lot not in lots}
        self._leftovers = None


class _Place:
    """What a call waits for. On our loop it gets there, and is told what became of its caller, in either order."""

    def __init__(self) -> None:
        self.lot: Lot | None = None
        self.awaited: Awaited | None = None
        self.is_void = False
        """Whether nothing waits for it, and nothing will."""
        self._took: bool | None = None

    def reach(self, lot: Lot, awaited: Awaited) -> None:
        self.lot, self.awaited = lot, awaited
        self._tell()

    async def settle(self, took: bool) -> None:
        """Hear whether the caller has the answer."""
        self._took = took
        self._tell()

    def _tell(self) -> None:
        if self.lot is None or self.awaited is None or self._took is None:
            return
        if self._took:
            self.lot.took(self.awaited)
        else:
            self.lot.forsake(self.awaited)


def _outlet(route: BatchRoute) -> str:
    """Return under which the duration of its batches is kept."""
    return f"{route.name}|{route.path}"


async def _done(post: Post, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Have work done on our loop, and wait for its end."""
    try:
        return await asyncio.wrap_future(post.bring(work))
    except LoopEnded:
        raise JobError(_CLOSED) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise JobError(_CLOSED) from None  # it was our loop that ended, and not the caller who left


def _outcome(result: Result) -> Outcome:
    """Return the end of a line as the answer to its call."""
    if result.response is None:
        told = f"{result.error_code}: {result.error_message}"
        if result.status_code is None or result.status_code < 500:
            raise InputError(told, code=result.error_code)
        raise AllRoutesFailed(told)
    headers: list[tuple[str, str]] = [("content-type", "application/json"), ("x-should-retry", "false")]
    if result.request_id:
        headers += [("x-request-id", result.request_id), ("request-id", result.request_id)]
    usage = Usage(result.input_tokens, result.output_tokens, certainty="known")
    return Outcome(result.status_code or 200, tuple(headers), _once(result.response), result.route or "", usage)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body
