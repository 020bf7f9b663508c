"""All accounts that take batches: who speaks to them, and how much they may have in their queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from orchestra.batches.client import BatchClient
from orchestra.batches.creation import Creation
from orchestra.batches.route import BatchRoute
from orchestra.budget import Budget, DayLimit
from orchestra.call import Call, Charge, Headers
from orchestra.clock import wall
from orchestra.dispatch.accounts import NO_KEY, Account
from orchestra.dispatch.route_table import Target
from orchestra.errors import UnknownModelError
from orchestra.policies.diversion import BatchOutlet
from orchestra.policies.traffic import TrafficClass
from orchestra.wire import Wire

__all__ = ["BatchDesk", "Routing"]

_LONGEST_NAP = 5.0
"""Seconds after which who waits for room looks again: a batch that ended may have made some."""


class Routing(Protocol):
    """Says which routes serve a call, in order of preference."""

    def __call__(self, call: Call) -> list[Target]: ...


class Reopened(Protocol):
    """What is remembered of a batch."""

    @property
    def provider(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def route(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def account(self) -> str: ...
    @property
    def headers(self) -> Headers: ...


_Key = tuple[str, str, Headers, str]


class _Account:
    """What is known of an account: its queue, and its right to batches."""

    __slots__ = ("failures", "forbidden", "full_until", "may_create", "open")

    def __init__(self) -> None:
        self.open: set[object] = set()
        self.full_until = 0.0
        self.failures = 0
        self.forbidden = 0
        self.may_create = False


class _Counter:
    """What the batches of one account share on one loop."""

    __slots__ = ("client", "uploads")

    def __init__(self, client: BatchClient) -> None:
        self.client = client
        self.uploads = asyncio.Semaphore(client.form.traits.creations)


class BatchDesk:
    """Where batches are handed in. One for all jobs of an `Orchestra`, on whatever loops they run.

    ``routing`` says which routes serve a call; ``wall`` is unix time.
    """

    def __init__(
        self,
        *,
        budget: Budget,
        wire: Wire,
        routing: Routing,
        wall: Callable[[], float] = wall,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._budget = budget
        self._wire = wire
        self._routing = routing
        self.wall = wall
        self.sleep = sleep
        self._accounts: dict[_Key, _Account] = {}
        self._counters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Key, _Counter]] = WeakKeyDictionary()
        self._shut: dict[tuple[object, ...], float] = {}

    def targets(self, call: Call) -> list[Target]:
        """Return the routes that serve a call, in order of preference."""
        return self._routing(call)

    def routes(self, call: Call) -> list[BatchRoute]:
        """Return where calls like this one can ride in batches, in order of preference."""
        return self._routes(call)

    def day_limits(self, account: Account, call: Call, model: str) -> list[DayLimit]:
        """Return what the limits of a day leave at an account to bulk calls like this one.

        Raises ConfigError where the account's key cannot be had.
        """
        return self._budget.day_limits(account.name, account.fingerprint(call), account.limits(model), model)

    def reopened(self, record: Reopened) -> BatchRoute | None:
        """Return the route of a batch that was made earlier, though the settings may want no more batches there.

        None where the account of that name is not there any more, takes none, or needs a caller's key.
        """
        call = Call.originate(record.path, {"model": f"{record.provider}/{record.model}"})
        try:
            routes = self._routes(call, again=True)
        except UnknownModelError:
            return None
        found = next((route for route in routes if route.name == record.route), None)
        if found is None or found.fingerprint == NO_KEY != record.account:
            return None
        return replace(found, headers=record.headers)

    def client(self, route: BatchRoute) -> BatchClient:
        """Return who speaks to the route's account."""
        return self._counter(route).client

    @asynccontextmanager
    async def queued(self, route: BatchRoute, tokens: float, *, job: str, already: bool) -> AsyncGenerator[None]:
        """Wait until so many input tokens fit into the account's queue, and hold them inside the block.

        A batch that is there ``already`` is not kept waiting; but those that come after it are. One whose creation
        is an ordinary call takes no room, and is counted by itself: see `outlet`.
        Raises BudgetExceeded where they never fit.
        """
        if route.form.is_call:
            here, one = self._account(route).open, object()
            here.add(one)
            try:
                yield
            finally:
                here.discard(one)
            return
        limits = route.account.limits(route.model)
        pool = self._budget.batch_pool(route.account.name, route.fingerprint, limits, route.model)
        charge = Charge(requests=0.0, tokens=min(tokens, route.queue) if already else tokens)
        taking = asyncio.ensure_future(pool.acquire(charge, traffic=TrafficClass.BULK, job=job, front=already))
        try:
            if not already:
                await taking
            yield
        finally:
            taking.cancel()
            await asyncio.wait({taking})
            if not taking.cancelled() and taking.exception() is None:
                taking.result().keep()

    def outlet(self, route: BatchRoute, observed: float | None) -> BatchOutlet:
        """Return what the choice among outlets goes by, with how much there is room for. May be called from any
        thread."""
        most = route.form.traits.max_open
        room = None if most is None else max(0, most - len(self._account(route).open))
        return replace(route.outlet(observed), room=room)

    async def admit(self, route: BatchRoute, payload: Mapping[str, Any], *, job: str) -> Creation:
        """Wait until the creation of what is one line may be sent, where that is an ordinary call.

        Raises BudgetExceeded where it never may, QueueFull where too many wait.
        """
        limits = route.account.limits(route.model)
        pool = self._budget.pool(route.account.name, route.fingerprint, limits, route.model)
        lease = await pool.acquire(route.charge_of(payload), traffic=TrafficClass.BULK, job=job)
        return Creation(pool, lease, route.account.provider, self.wall)

    async def afford(self, route: BatchRoute, usd: float | None, *, job: str) -> Callable[[], None]:
        """Wait until the account's cap in dollars has room for a batch, and count it as spent.

        It is counted when the batch is handed in, since it cannot be held back afterwards. Returns what gives all
        of it back, to be called once where the batch has cost nothing; of one that cost less than was thought,
        nothing is. Without a cap nothing is asked. Raises BudgetExceeded where it never fits, PriceUnknown where
        nobody knows what it costs.
        """
        if not route.is_capped:
            return _nothing
        limits = route.account.limits(route.model)
        pool = self._budget.pool(route.account.name, route.fingerprint, limits, route.model)
        lease = await pool.acquire(Charge(requests=0.0, usd=usd), traffic=TrafficClass.BULK, job=job)
        lease.keep()
        return partial(pool.give_back, lease)

    def uploading(self, route: BatchRoute) -> asyncio.Semaphore:
        """Return what bounds how many batches are handed in at once."""
        return self._counter(route).uploads

    async def until_open(self, route: BatchRoute) -> None:
        """Wait as long as the account's queue is known to be full."""
        account = self._account(route)
        while (wait := account.full_until - self.wall()) > 0:
            await self.sleep(min(wait, _LONGEST_NAP))

    def note_failed(self, route: BatchRoute) -> int:
        """Count a batch of the account that failed as a whole. Returns how many did in a row."""
        account = self._account(route)
        account.failures += 1
        return account.failures

    def note_served(self, route: BatchRoute) -> None:
        """Note that a batch of the account has ended with results: there is room again."""
        account = self._account(route)
        account.failures, account.full_until = 0, 0.0

    def note_full(self, route: BatchRoute, seconds: float) -> None:
        """Hand in no batch of the account for so long: its queue is full, whatever our own count says."""
        self._account(route).full_until = self.wall() + seconds

    def note_created(self, route: BatchRoute) -> None:
        """Note that a batch of the account was created: its key has the right to."""
        self._account(route).may_create = True

    def note_forbidden(self, route: BatchRoute) -> int:
        """Count a creation that was forbidden. Returns how many of the account were; 0 where one was allowed: then
        it is not the key."""
        account = self._account(route)
        account.forbidden += 1
        return 0 if account.may_create else account.forbidden

    def shut(self, route: BatchRoute, seconds: float) -> None:
        """Let no line ride along ``route`` for so long, or longer where that was said before."""
        self._shut[route.group] = max(self._shut.get(route.group, 0.0), self.wall() + seconds)

    def is_open(self, route: BatchRoute) -> bool:
        """Return whether lines may ride along ``route``. May be called from any thread."""
        return self._shut.get(route.group, 0.0) <= self.wall()

    def _routes(self, call: Call, *, again: bool = False) -> list[BatchRoute]:
        targets = self._routing(call)
        return [route for target in targets for route in BatchRoute.of(target, call, again=again)]

    def _account(self, route: BatchRoute) -> _Account:
        return self._accounts.setdefault(_key(route), _Account())

    def _counter(self, route: BatchRoute) -> _Counter:
        counters = self._counters.setdefault(asyncio.get_running_loop(), {})
        counter = counters.get(_key(route))
        if counter is None:
            client = BatchClient(
                route.account,
                route.form,
                self._wire,
                headers=route.credentials,
                clock=self.wall,
                sleep=self.sleep,
            )
            counter = counters[_key(route)] = _Counter(client)
        return counter


def _nothing() -> None:
    """Give nothing back."""


def _key(route: BatchRoute) -> _Key:
    return (route.account.name, route.fingerprint, route.credentials, route.form.label)
