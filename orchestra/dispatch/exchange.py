"""One metered attempt at a provider: admit, send, read, settle.

The lease that the budget gives is ended once, here or with the body that is handed on: settled by the usage that
the answer tells; refunded where nothing can have reached the provider; kept where the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from orchestra.budget import Budget, Lease, Pool
from orchestra.call import Call, Charge, Outcome, RateLimit, Usage
from orchestra.config import PriceConfig
from orchestra.dispatch.answer_body import AnswerBody, End
from orchestra.dispatch.bounds import Bounds
from orchestra.dispatch.route_table import Target
from orchestra.dispatch.seen_output import SeenOutput
from orchestra.dispatch.tiers import billed_as, cost_at_least, tier_cost
from orchestra.errors import ConnectionFailed, InputError, OrchestraError, PriceUnknown, ProviderError
from orchestra.observe.events import EventKind
from orchestra.policies.fault import Fault, Recovery
from orchestra.providers import Endpoint, FormatError, expected_usage
from orchestra.wire import Wire, WireResponse

__all__ = ["Exchange", "Failed", "Stopwatch", "Tell"]

LONGEST_PAUSE = 86_400.0
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

    @property
    def status(self) -> int | None:
        """The status of the answer that it failed by, where there was one."""
        return self.error.status if isinstance(self.error, ProviderError) else None


class Tell(Protocol):
    """Tells an event of one attempt. ``fields`` are those of `Event` that are not the attempt's anyhow."""

    def __call__(self, kind: EventKind, **fields: Any) -> None: ...


@dataclass(slots=True)
class Stopwatch:
    """The times of one attempt, on ``clock``. ``on_sent`` is told when its request goes out."""

    clock: Callable[[], float]
    on_sent: Callable[[], None] = lambda: None
    sent_at: float | None = field(default=None, init=False)
    ttft: float | None = field(default=None, init=False)
    outrun: bool = field(default=False, init=False)
    """Whether another attempt at the same call was quicker, so that this one is given up."""

    def start(self) -> None:
        self.sent_at = self.clock()
        self.on_sent()

    def first_byte(self) -> float | None:
        """Note that the first content is there, and return how long it took."""
        self.ttft = self.elapsed()
        return self.ttft

    def elapsed(self) -> float | None:
        """Return how long ago the request went out."""
        return None if self.sent_at is None else self.clock() - self.sent_at


class Exchange:
    """One attempt to send ``call`` to the account of ``target``.

    ``watch`` has the monotonic clock, ``wall`` is unix time. ``on_broken`` is told of a stream that breaks after
    this is over. ``default_tier``: the service tier is left to the provider, unless the call names one itself.
    """

    def __init__(
        self,
        call: Call,
        target: Target,
        *,
        budget: Budget,
        wire: Wire,
        bounds: Bounds,
        watch: Stopwatch,
        wall: Callable[[], float],
        tell: Tell,
        on_broken: Callable[[], None],
        default_tier: bool = False,
    ) -> None:
        if target.account is None or target.model is None or call.payload is None:
            raise ValueError("only a call that names a model can be metered")
        self._call = call
        self._target = target
        self._account = target.account
        self._provider = target.account.provider
        self._endpoint = self._provider.endpoint(target.path)
        self._model = target.model
        self._price = target.account.price(target.model)
        self._default_tier = default_tier
        self._tier: str | None = None  # as far as it is known: asked for, then told
        self._compose()
        self._pool: Pool = budget.pool(
            self._account.name,
            self._account.fingerprint(call),
            self._account.limits(target.model),
            target.model,
        )
        self._lease: Lease | None = None
        self._seen = SeenOutput()
        self._wire = wire
        self._bounds = bounds
        self._watch = watch
        self._wall = wall
        self._tell = tell
        self._status: int | None = None
        self._on_broken = on_broken

    async def run(self, *, front: bool = False, at_once: bool = False) -> Outcome | Failed:
        """Make the attempt. ``front`` lets it in before the others of its class that wait; ``at_once`` lets it in
        now or never.

        What a server refuses of what we added (the question for a stream's usage, a service tier) is not said to
        it again; the call goes once more without.

        Raises AdmissionError, ConnectionFailed, DeadlineExceeded, InputError where it cannot be sent, and
        ConfigError where the account's key cannot be had.
        """
        result = await self._run_once(front=front, at_once=at_once)
        while isinstance(result, Failed) and self._withdraw(result.error):
            self._compose()
            result = await self._run_once(front=True)
        return result

    def _compose(self) -> None:
        """Write the payload, and estimate what it will take."""
        account = self._account
        payload = account.prepare(self._endpoint, self._call, self._model, default_tier=self._default_tier)
        self._payload = account.payload_for(self._model, self._call, self._target.path, payload)
        self._tier = self._provider.tier_asked(self._payload)
        charge = self._provider.charge(self._endpoint, self._payload)
        if self._price is not None:
            expected = expected_usage(self._endpoint, self._payload, charge)
            usd = None if expected is None else tier_cost(self._price, expected, self._tier)
            charge = replace(charge, usd=usd)
        self._charge = charge
        self._estimated = {
            "estimated_input_tokens": charge.input_tokens,
            "estimated_output_tokens": charge.output_tokens or None,
            "estimated_usd": charge.usd,
        }

    def _withdraw(self, error: OrchestraError) -> bool:
        if not isinstance(error, ProviderError) or error.status not in (400, 422):
            return False
        return self._account.withdraw(self._call, self._payload, self._model, error.body)

    def _price_unknown(self) -> PriceUnknown:
        name, model = self._account.name, self._model
        if self._price is not None and self._tier is not None and self._endpoint is not Endpoint.OTHER:
            return PriceUnknown(
                f"usd_per_day holds for {model!r} at {name}, whose service tier {self._tier!r} may cost more: add "
                f"tiers = {{ {billed_as(self._tier)} = FACTOR }} to its [[providers.{name}.prices]]"
            )
        if self._price is not None:
            return PriceUnknown(f"usd_per_day holds for {model!r} at {name}, and {self._target.path} has no price")
        return PriceUnknown(
            f"usd_per_day holds for {model!r} at {name}, and no price is known for it: add "
            f'[[providers.{name}.prices]] with models = ["{model}"], input and output (USD per million tokens)'
        )

    async def _run_once(self, *, front: bool, at_once: bool = False) -> Outcome | Failed:
        path = self._provider.path_for(self._target.path, self._model)
        request = self._account.request(self._call, path, self._payload)
        if not at_once:
            self._tell("queued", time_left=self._bounds.admission_left(), **self._estimated)
        try:
            self._lease = await self._pool.acquire(
                self._charge,
                traffic=self._call.traffic,
                job=self._call.job,
                expires_at=self._call.expires_at,
                queue_bound=0.0 if at_once else self._bounds.queue_left(),
                front=front,
            )
        except PriceUnknown:
            raise self._price_unknown() from None
        except asyncio.CancelledError:
            if not at_once:
                self._tell_interrupted("cancelled")
            raise
        response: WireResponse | None = None
        handed_on = False
        try:
            self._tell("admitted", waited=self._lease.waited, **self._estimated)
            async with asyncio.timeout(self._bounds.time_left()):
                self._watch.start()
                self._tell("sent")
                response = await self._wire.send(
                    request.method,
                    request.url,
                    request.headers,
                    request.body,
                    connect_timeout=self._call.connect_timeout,
                    read_timeout=self._call.read_timeout,
                )
                response.headers = self._account.handed_on(self._call, response.headers)
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
        except asyncio.CancelledError:
            self._tell_interrupted("cancelled")
            raise
        finally:
            if not handed_on:
                if self._lease is not None:
                    self._take_lease().keep()
                if response is not None:
                    await response.aclose()

    async def _read(self, response: WireResponse) -> Outcome | Failed:
        told = self._provider.limits(response.headers, self._wall())
        self._status = response.status
        if not 200 <= response.status < 300:
            return await self._read_error(response, told)
        self._pool.observe(self._leased(), told)
        self._tier = self._provider.tier_told(response.headers) or self._tier
        if self._call.streams or self._endpoint is Endpoint.OTHER:
            return await self._open_stream(response)
        body = await _whole(response)
        usage = self._provider.usage(self._endpoint, body)
        if usage.certainty != "known":
            self._seen.feed(body)
        self._end("complete", usage)()
        return Outcome(response.status, response.headers, _once(body), self._target.name, usage=usage)

    async def _read_error(self, response: WireResponse, told: list[RateLimit]) -> Failed:
        body = await _whole(response)
        # What a provider refuses counts as a request, and uses no tokens.
        lease = self._take_lease()
        lease.settle(Charge(requests=self._charge.requests, usd=0.0))
        fault = self._provider.fault(response.status, response.headers, body, self._wall(), tier=self._tier)
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
        wait = QUOTA_PAUSE if fault.retry_after is None else min(fault.retry_after, LONGEST_PAUSE)
        until = self._watch.clock() + wait
        self._pool.pause(until, fault.reason)
        self._tell("paused", reason=fault.reason, status=self._status, duration=wait)
        return until

    async def _open_stream(self, response: WireResponse) -> Outcome | Failed:
        """Read on until there is content to show. Up to there a stream may fail and be tried again unseen."""
        reader = self._provider.stream(self._endpoint, self._call.payload or {})
        held = b""
        source = response.body if self._endpoint is Endpoint.OTHER else self._seen.watch(response.body)
        async for chunk in source:
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
                lease.settle(Charge(requests=self._charge.requests, usd=0.0))
                self._pool.throttled(lease, [], pause=reader.fault.pause)
            error = ProviderError(
                f"{self._target.name} answered {reader.fault.reason}", status=response.status, body=held
            )
            return Failed(reader.fault, error, Outcome(response.status, headers, _once(held), self._target.name))
        self._tell("first_byte", ttft=self._watch.first_byte())
        body = AnswerBody(
            self._target.name,
            held=held,
            source=source,
            close=response.aclose,
            reader=reader,
            on_end=self._end,
            bounds=self._bounds,
            on_read=self._note_reader,
        )
        if not reader.ended:
            self._note_reader(handed=True)
        return body.outcome(response.status, headers)

    def _note_reader(self, handed: bool) -> None:
        if self._lease is not None:
            self._pool.note_reader(self._lease, handed=handed)

    def _end(self, end: End, usage: Usage) -> Callable[[], None]:
        """End the lease of an answer that was handed on. Returns what tells of it."""
        lease = self._take_lease()
        self._pool.forget_reader(lease)
        if usage.certainty == "known":
            spent = self._provider.settle(self._charge, usage)
            if self._price is not None:
                spent = replace(spent, usd=self._cost(self._price, usage))
            lease.settle(spent)
        else:
            spent = self._spent_at_least(lease.charge, usage.tier)
            lease.settle(spent)
        if end == "broken":
            self._on_broken()
        return partial(self._tell_end, end, usage, spent)

    def _tell_end(self, end: End, usage: Usage, spent: Charge) -> None:
        tier = self._tier_of(usage)
        if self._price is not None and tier is not None and tier_cost(self._price, usage, tier) is None:
            self._account.note_price_of(tier)
        if end != "complete":
            self._tell_interrupted(end)
            return
        known = usage.certainty != "unknown"
        self._tell(
            "settled",
            status=self._status,
            certainty=usage.certainty,
            input_tokens=usage.input_tokens if known else None,
            output_tokens=usage.output_tokens if known else None,
            cached_tokens=usage.cached_tokens if known else None,
            charged_tokens=spent.tokens,
            usd=spent.usd,
            ttft=self._watch.ttft,
            duration=self._watch.elapsed(),
            **self._estimated,
        )

    def _spent_at_least(self, charge: Charge, tier: str | None) -> Charge:
        """Return what to count for an answer that did not tell its usage: what was set aside for it, and more
        where more of it was seen than that."""
        seen = Usage(math.ceil(charge.input_tokens), self._seen.tokens, certainty="estimated", tier=tier)
        if not seen.output_tokens:
            return charge
        counted = self._provider.settle(charge, seen)
        usd = charge.usd if self._price is None else max(charge.usd or 0.0, self._cost(self._price, seen))
        spent = Charge(
            max(charge.requests, counted.requests),
            max(charge.tokens, counted.tokens),
            max(charge.input_tokens, counted.input_tokens),
            max(charge.output_tokens, counted.output_tokens),
            usd,
        )
        return charge if spent == charge else spent

    def _cost(self, price: PriceConfig, usage: Usage) -> float:
        """Return what ``usage`` cost, in the tier that the answer told, or else in the one asked for."""
        return cost_at_least(price, usage, self._tier_of(usage))

    def _tier_of(self, usage: Usage) -> str | None:
        return usage.tier if usage.tier is not None and self._provider.tiered else self._tier

    def _tell_interrupted(self, how: str) -> None:
        reason = "outrun" if self._watch.outrun else how
        self._tell("interrupted", reason=reason, duration=self._watch.elapsed(), **self._estimated)

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
