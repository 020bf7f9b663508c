"""One metered attempt at a provider: admit, send, read, settle.

The lease that the budget gives is ended once, here or with the body that is handed on: settled by the usage that
the answer tells; refunded where nothing can have reached the provider; kept where the outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from orchestra.budget import Budget, Lease, Pool
from orchestra.call import Call, Charge, Outcome, RateLimit, Usage
from orchestra.dispatch.answer_body import AnswerBody, End
from orchestra.dispatch.bounds import Bounds
from orchestra.dispatch.route_table import Target
from orchestra.errors import ConnectionFailed, InputError, OrchestraError, ProviderError
from orchestra.observe.events import EventKind
from orchestra.policies.retry import Fault, Recovery
from orchestra.providers import Endpoint, FormatError
from orchestra.wire import Wire, WireResponse

__all__ = ["Exchange", "Failed"]

QUOTA_PAUSE = 60.0
"""Seconds for which an account is left alone after its provider called it spent; then calls ask again."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt that brought no answer to hand on.

    ``answer`` is the provider's own, where it gave one; ``paused_until`` is the instant up to which the account is
    left alone, where it is spent.
    """

    fault: Fault
    error: OrchestraError
    answer: Outcome | None = None
    paused_until: float | None = None


class Emit(Protocol):
    def __call__(self, kind: EventKind, call: Call, route: str, **detail: float | int | str) -> None: ...


class Exchange:
    """One attempt to send ``call`` to the account of ``target``.

    ``clock`` is monotonic, ``wall`` unix time. ``on_broken`` is told of a stream that breaks after this is over.
    """

    def __init__(
        self,
        call: Call,
        target: Target,
        *,
        budget: Budget,
        wire: Wire,
        bounds: Bounds,
        clock: Callable[[], float],
        wall: Callable[[], float],
        emit: Emit,
        on_broken: Callable[[], None],
    ) -> None:
        if target.account is None or target.model is None or call.payload is None:
            raise ValueError("only a call that names a model can be metered")
        self._call = call
        self._target = target
        self._account = target.account
        self._provider = target.account.provider
        self._endpoint = self._provider.endpoint(target.path)
        payload = self._provider.prepare(self._endpoint, call.payload)
        self._payload = payload if target.model == call.model else {**payload, "model": target.model}
        self._charge = self._provider.charge(self._endpoint, self._payload)
        self._pool: Pool = budget.pool(
            self._account.name,
            self._account.fingerprint(call),
            self._account.limits(target.model),
            target.model,
        )
        self._lease: Lease | None = None
        self._wire = wire
        self._bounds = bounds
        self._clock = clock
        self._wall = wall
        self._emit = emit
        self._on_broken = on_broken

    async def run(self, *, front: bool) -> Outcome | Failed:
        """Make the attempt. ``front`` lets it in before the others of its class that wait.

        Raises AdmissionError, ConnectionFailed, DeadlineExceeded, InputError where it cannot be sent, and
        ConfigError where the account's key cannot be had.
        """
        request = self._account.request(self._call, self._target.path, self._payload)
        self._lease = await self._pool.acquire(
            self._charge,
            traffic=self._call.traffic,
            job=self._call.job,
            expires_at=self._call.expires_at,
            queue_bound=self._call.queue_bound,
            front=front,
        )
        response: WireResponse | None = None
        handed_on = False
        try:
            self._emit("admitted", self._call, self._target.name, tokens=self._charge.tokens)
            async with asyncio.timeout(self._bounds.time_left()):
                self._emit("sent", self._call, self._target.name)
                response = await self._wire.send(
                    request.method,
                    request.url,
                    request.headers,
                    request.body,
                    connect_timeout=self._call.connect_timeout,
                    read_timeout=self._call.read_timeout,
                )
                result = await self._read(response)
            if isinstance(result, Failed) and result.fault.recovery is Recovery.PAUSE:
                return replace(result, paused_until=self._pause(result.fault))
            handed_on = isinstance(result, Outcome) and isinstance(result.body, AnswerBody)
            return result
        except InputError:  # it can be written to no wire
            self._take_lease().refund()
            raise
        except ConnectionFailed as error:
            if not error.sent:
                self._take_lease().refund()
            raise
        except FormatError as error:
            raise ConnectionFailed(str(error), sent=True) from None
        except TimeoutError:
            raise self._bounds.expired() from None
        finally:
            if not handed_on:
                if self._lease is not None:
                    self._take_lease().keep()
                if response is not None:
                    await response.aclose()

    async def _read(self, response: WireResponse) -> Outcome | Failed:
        told = self._provider.limits(response.headers, self._wall())
        if not 200 <= response.status < 300:
            return await self._read_error(response, told)
        self._pool.observe(self._leased(), told)
        if self._call.streams or self._endpoint is Endpoint.OTHER:
            return await self._open_stream(response)
        body = await _whole(response)
        usage = self._provider.usage(self._endpoint, body)
        self._end("complete", usage)
        return Outcome(response.status, response.headers, _once(body), self._target.name, usage=usage)

    async def _read_error(self, response: WireResponse, told: list[RateLimit]) -> Failed:
        body = await _whole(response)
        # What a provider refuses counts as a request, and uses no tokens.
        lease = self._take_lease()
        lease.settle(Charge(requests=self._charge.requests))
        fault = self._provider.fault(response.status, response.headers, body, self._wall())
        if fault.throttled:
            self._pool.throttled(lease, told, pause=fault.pause)
        else:
            self._pool.observe(lease, told, ok=False)
        error = ProviderError(
            f"{self._target.name} answered {fault.reason}",
            status=response.status,
            retry_after=fault.retry_after,
            body=body,
        )
        if response.status < 400:  # a redirect is of use to nobody: its place may not be sent our key
            return Failed(fault, error)
        headers = (
            *(line for line in response.headers if line[0] != "x-should-retry"),
            ("x-should-retry", "false"),
        )
        return Failed(fault, error, Outcome(response.status, headers, _once(body), self._target.name))

    def _pause(self, fault: Fault) -> float:
        wait = QUOTA_PAUSE if fault.retry_after is None else fault.retry_after
        until = self._clock() + wait
        self._pool.pause(until, fault.reason)
        self._emit("paused", self._call, self._target.name, reason=fault.reason, seconds=wait)
        return until

    async def _open_stream(self, response: WireResponse) -> Outcome | Failed:
        """Read on until there is content to show. Up to there a stream may fail and be tried again unseen."""
        reader = self._provider.stream(self._endpoint, self._call.payload or {})
        held = b""
        async for chunk in response.body:
            held += reader.feed(chunk)
            if reader.started or reader.fault is not None:
                break
        else:
            held += reader.finish()
            if not (reader.ended or reader.fault):
                raise ConnectionFailed("the stream ended before any content", sent=True)
        headers = tuple(line for line in response.headers if line[0] != "content-length")
        if reader.fault is not None and not reader.started:
            if reader.fault.throttled:
                lease = self._take_lease()
                lease.settle(Charge(requests=self._charge.requests))
                self._pool.throttled(lease, [], pause=reader.fault.pause)
            error = ProviderError(
                f"{self._target.name} answered {reader.fault.reason}", status=response.status, body=held
            )
            return Failed(reader.fault, error, Outcome(response.status, headers, _once(held), self._target.name))
        self._emit("first_byte", self._call, self._target.name)
        body = AnswerBody(
            self._target.name,
            held=held,
            source=response.body,
            close=response.aclose,
            reader=reader,
            on_end=self._end,
            bounds=self._bounds,
        )
        return body.outcome(response.status, headers)

    def _end(self, end: End, usage: Usage) -> None:
        """End the lease of an answer that was handed on."""
        lease = self._take_lease()
        if usage.certainty == "known":
            lease.settle(self._provider.settle(self._charge, usage))
        else:
            lease.keep()
        if end == "complete":
            tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
            self._emit("settled", self._call, self._target.name, certainty=usage.certainty, **tokens)
        else:
            self._emit("interrupted", self._call, self._target.name, how=end)
        if end == "broken":
            self._on_broken()

    def _take_lease(self) -> Lease:
        lease, self._lease = self._leased(), None
        return lease

    def _leased(self) -> Lease:
        if self._lease is None:
            raise RuntimeError("the lease has ended")
        return self._lease


async def _whole(response: WireResponse) -> bytes:
    return b"".join([chunk async for chunk in response.body])


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body
