"""Speaks to one account's batch endpoint: asks, reads, and tells errors apart. It keeps nothing."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property, partial
from typing import TypeVar
from urllib.parse import unquote, urljoin, urlsplit

from aiolimiter import AsyncLimiter

from orchestra.batches.errors import (
    AccountRefused,
    BatchBusy,
    BatchForbidden,
    BatchNotFound,
    BatchRefused,
    BatchUnclear,
)
from orchestra.batches.mask import Mask
from orchestra.call import Headers
from orchestra.clock import wall
from orchestra.dispatch.accounts import Account, WireRequest
from orchestra.errors import ConnectionFailed, InputError, ProviderError
from orchestra.providers import FormatError
from orchestra.providers.batches import Ask, BatchForm, BatchOrder, BatchState, LineResult
from orchestra.providers.faults import error_object
from orchestra.wire import Wire, WireResponse

__all__ = ["BatchClient", "Heard", "Lines"]

T = TypeVar("T")
Lines = Callable[[], AsyncIterator[bytes]]
"""Begins the lines of a batch, as its form wrote them, from the start."""
Heard = Callable[[int, Headers, bytes], None]
"""Is told the status and the headers of an answer, and the body of an error."""

_log = logging.getLogger("orchestra.batches")

_CONNECT_TIMEOUT = 10.0
_READ_TIMEOUT = 120.0
_LOOKS_AGAIN = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""The seconds between attempts to create a batch of a file that the provider does not see yet: a minute in all."""
_CLOCKS_DIFFER = 600.0
"""Seconds by which a provider's clock may be behind ours."""
_MOST_PAGES = 500
_LONGEST_ANSWER = 256 << 20
_LONGEST_ERROR = 1 << 20
_LONGEST_MESSAGE = 300
_BUSY = frozenset({408, 425, 429})
_OF_ACCOUNT = frozenset({401, 402})
_REFUSALS: Mapping[int, type[BatchRefused]] = {403: BatchForbidden, 404: BatchNotFound}
_SPENT = frozenset(
    {
        "access_terminated",
        "billing_hard_limit_reached",
        "billing_not_active",
        "credit_balance_exhausted",
        "insufficient_quota",
        "organization_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "project_spend_limit_exceeded",
    }
)
"""Codes of an account that has nothing left, which come with a 429 too; waiting does not help."""
_MOVED = frozenset({301, 302, 303, 307, 308})
_MOST_MOVES = 3


class BatchClient:
    """The batch endpoint of ``account``, in its ``form``.

    ``headers`` go with every request: a caller's own credentials, where the account has none, which must be those
    of a caller that pointed there. Batches are looked at, or cancelled, ``polls_per_second`` times at most, by
    default as its form says, all together and in the order of asking, so that none holds up another. ``clock`` is
    unix time. It belongs to one event loop.

    All methods raise `BatchRefused`, `BatchNotFound`, `BatchBusy`, and `ConnectionFailed`, also for a success that
    is not in the endpoint's format.
    """

    def __init__(
        self,
        account: Account,
        form: BatchForm,
        wire: Wire,
        *,
        headers: Headers = (),
        polls_per_second: float | None = None,
        clock: Callable[[], float] = wall,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._account = account
        self.form = self._form = form
        self._wire = wire
        self._headers = headers
        self._looks = AsyncLimiter(polls_per_second or form.traits.looks_per_second, 1.0)
        self._clock = clock
        self._sleep = sleep

    async def upload(self, order: BatchOrder, lines: Lines, size: int) -> str:
        """Upload the file of a batch, of ``size`` bytes. Returns the provider's id for it."""
        return _read(self._form.read_upload, await self._answer(self._form.upload(order, lines(), size)))

    async def create(
        self, order: BatchOrder, content: str | Lines, size: int = 0, *, heard: Heard | None = None
    ) -> BatchState:
        """Create a batch of an uploaded file, by its id, or of its lines, of ``size`` bytes with their newlines.

        It is asked once, but for a file that the provider does not see yet. No creation can safely be repeated:
        where a `ConnectionFailed` was sent, or the provider broke (`BatchBusy` with a 5xx), `find` tells first.
        ``heard`` is told of each answer.
        """
        for pause in _LOOKS_AGAIN if isinstance(content, str) else ():
            try:
                return await self._create(order, content, size, heard)
            except BatchRefused as error:
                if not _is_about_file(error):
                    raise
            await self._sleep(pause)
        return await self._create(order, content, size, heard)

    async def poll(self, batch_id: str) -> BatchState:
        """Look at a batch."""
        async with self._looks:
            return self._mask.state(_read(self._form.read, await self._answer(self._form.poll(batch_id))))

    async def cancel(self, batch_id: str) -> BatchState:
        """Ask for the end of a batch, and look at it. One that has ended already is no error."""
        try:
            async with self._looks:  # many may have to end at the same time
                await self._answer(self._form.cancel(batch_id))
        except BatchNotFound:
            raise
        except BatchRefused:
            state = await self.poll(batch_id)
            if not state.ended:
                raise
            return state
        return await self.poll(batch_id)

    async def find(
        self,
        order: BatchOrder,
        *,
        since: float,
        is_ours: Callable[[str], bool],
        file_id: str | None = None,
        total: int | None = None,
        claimed: Collection[str] = (),
        until: float = math.inf,
    ) -> BatchState | None:
        """Look for a batch whose creation was asked for at ``since`` or later, and may have come to pass.

        It is known by our key, or by the file that it was made of. Where a batch can carry neither, it is among
        those with ``total`` lines, created at ``until`` at the latest, whose ids are not ``claimed`` by others:
        the one that has ended with results that ``is_ours`` says yes to; or, provisionally, the only one that is
        still under way, which may be somebody else's. Only what is certain is returned with our ``key`` in it.
        Where there is no list, nothing is found.

        Raises BatchUnclear where several are still under way, and where there are too many to look through.
        """
        if self._form.traits.carrier == "none":
            return None
        candidates = []
        async for state in self._since(since - _CLOCKS_DIFFER):
            if state.key == order.key or (file_id is not None and state.input_file == file_id):
                return replace(state, key=order.key)
            in_time = state.created is None or state.created <= until + _CLOCKS_DIFFER
            if in_time and state.id not in claimed and total in (None, state.total):
                candidates.append(state)
        if self._form.traits.carrier != "custom_id":
            return None
        for state in candidates:
            if state.ended and await self._is_of(state, is_ours):
                return replace(state, key=order.key)
        open_ones = [state for state in candidates if not state.ended]
        if len(open_ones) > 1:
            raise BatchUnclear(
                f"{self._account.name}: {len(open_ones)} batches under way may be {order.key}",
                ids=[state.id for state in open_ones],
            )
        return open_ones[0] if open_ones else None

    async def results(self, state: BatchState) -> AsyncGenerator[list[LineResult]]:
        """Yield the results of a batch that has ended, as they come. It may be read again from the start."""
        for ask in self._form.results(state):
            reader = self._form.reader(ask)
            response = await self._open(ask)
            try:
                async for piece in response.body:
                    if results := reader.feed(piece):
                        yield [self._mask.result(result) for result in results]
                if results := reader.finish():
                    yield [self._mask.result(result) for result in results]
            except FormatError as error:
                raise ConnectionFailed(f"{self._account.name}: {error}", sent=True) from None
            finally:
                await response.aclose()
            if reader.unreadable:
                _log.warning(
                    "%s: batch %s: %d unreadable results", self._account.name, state.id, reader.unreadable
                )

    async def delete_file(self, file_id: str) -> None:
        """Remove an uploaded file, where the provider lets us. One that is gone is no error."""
        if (ask := self._form.delete_file(file_id)) is not None:
            try:
                await self._answer(ask)
            except BatchNotFound:
                pass

    @cached_property
    def _mask(self) -> Mask:
        request = self._account.own_request("GET", "", self._headers)
        return Mask(
            value for name, value in request.headers if (name, value) not in self._account.provider.defaults
        )

    async def _create(self, order: BatchOrder, content: str | Lines, size: int, heard: Heard | None) -> BatchState:
        ask = self._form.create(order, content if isinstance(content, str) else content(), size)
        return self._mask.state(_read(self._form.read, await self._answer(ask, heard)))

    async def _since(self, instant: float) -> AsyncIterator[BatchState]:
        """Yield the account's batches, page by page, up to a page on which all are older than ``instant``."""
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            async with self._looks:
                body = await self._answer(self._form.list(cursor))
            states, cursor = _read(partial(self._form.read_list, cursor=cursor), body)
            recent = [state for state in states if state.created is None or state.created >= instant]
            for state in recent:
                yield self._mask.state(state)
            if cursor is None or (states and not recent):
                return
        raise BatchUnclear(f"{self._account.name}: there are too many batches to look for one of ours", ids=())

    async def _is_of(self, state: BatchState, is_ours: Callable[[str], bool]) -> bool:
        try:
            async with aclosing(self.results(state)) as found:
                async for results in found:
                    return any(is_ours(result.custom_id) for result in results)
        except BatchRefused:  # they are kept no longer, so it is older than any that we look for
            pass
        return False

    async def _answer(self, ask: Ask, heard: Heard | None = None) -> bytes:
        """Return the whole answer to a request."""
        response = await self._open(ask, heard)
        try:
            return await _whole(response, _LONGEST_ANSWER)
        finally:
            await response.aclose()

    async def _open(self, ask: Ask, heard: Heard | None = None) -> WireResponse:
        """Send a request; return its answer if it is a success, whose body is still to come."""
        request = self._account.own_request(ask.method, ask.path, (*self._headers, *ask.headers), ask.body)
        for _ in range(_MOST_MOVES + 1):
            response = await self._wire.send(
                request.method,
                request.url,
                request.headers,
                request.body,
                connect_timeout=_CONNECT_TIMEOUT,
                read_timeout=_READ_TIMEOUT,
            )
            if 200 <= response.status < 300:
                if heard is not None:
                    heard(response.status, response.headers, b"")
                return response
            try:
                body = await _whole(response, _LONGEST_ERROR)
            except ConnectionFailed:
                body = b""  # its status says enough
            finally:
                await response.aclose()
            moved = self._moved(request, response) if request.method == "GET" else None
            if moved is None:
                break
            request = moved
        if heard is not None:
            heard(response.status, response.headers, body)
        raise self._error(request, response, body)

    def _moved(self, request: WireRequest, response: WireResponse) -> WireRequest | None:
        """Return the request that follows a redirect; None where there is none that may be followed.

        To another place than below the account's base URL it carries nothing of ours: files are often kept with
        others, at addresses that are keys in themselves.
        """
        place = next((value for name, value in response.headers if name == "location"), None)
        if response.status not in _MOVED or place is None:
            return None
        try:
            url = urljoin(request.url, place)
            path, parts = self._account.path_of(url), urlsplit(url)
        except (InputError, ValueError):
            return None
        if path is not None and not _climbs(path):
            query = f"?{parts.query}" if parts.query else ""
            return self._account.own_request("GET", path + query, self._headers)
        if parts.scheme not in ("https", urlsplit(request.url).scheme):
            return None
        return WireRequest("GET", url, (), b"")

    def _error(self, request: WireRequest, response: WireResponse, body: bytes) -> ProviderError:
        status, error = response.status, error_object(body)
        words = (error.get("code"), error.get("type"), error.get("status"))
        code = next((word for word in words if isinstance(word, str) and word), None)
        told = f"{self._account.name}: {request.method} {urlsplit(request.url).path} answered {status}"
        if code is not None and code != str(status):
            told += f" {code}"
        if isinstance(message := error.get("message"), str) and status not in (401, 403):
            told += f": {self._mask.text(message, _LONGEST_MESSAGE)}"
        told = self._mask.text(told)
        code = code and self._mask.text(code, _LONGEST_MESSAGE)
        if status in _OF_ACCOUNT or (code in _SPENT and status < 500):
            return AccountRefused(told, status=status, code=code)
        if status in _BUSY or status >= 500:
            fault = self._account.provider.fault(status, response.headers, body, self._clock())
            return BatchBusy(told, status=status, code=code, retry_after=fault.retry_after or 0.0)
        return _REFUSALS.get(status, BatchRefused)(told, status=status, code=code)


async def _whole(response: WireResponse, longest: int) -> bytes:
    body = bytearray()
    async for piece in response.body:
        body += piece
        if len(body) > longest:
            raise ConnectionFailed(f"the answer is longer than {longest} bytes", sent=True)
    return bytes(body)


def _read(read: Callable[[bytes], T], body: bytes) -> T:
    try:
        return read(body)
    except FormatError as error:
        raise ConnectionFailed(str(error), sent=True) from None


def _climbs(path: str) -> bool:
    """Return whether a server may take ``path`` for one outside of what it begins with."""
    return not {".", ".."}.isdisjoint(unquote(path).replace("\\", "/").split("/"))


def _is_about_file(error: BatchRefused) -> bool:
    return error.status == 404 or (error.status == 400 and "file" in str(error).lower())
