"""Try one SDK over our transport. Runs where that SDK is installed: ``probe.py ADAPTER STAND RESULTS``.

Each behaviour gets an Orchestra and a client of its own. What it came to is written to the file ``RESULTS``, as
JSON: SDKs print to the standard output as they please.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from adapters import ADAPTERS, KEY, Adapter
from stand import TEXT, reach

import orchestra
from orchestra.policies import RetryPolicy

__all__ = ["BEHAVIOURS", "Trial"]

LONGEST = 30.0
"""Seconds that one behaviour may take."""


class Trial:
    """One SDK, and the stand of providers that it is tried against."""

    def __init__(self, adapter: type[Adapter], stand: Any) -> None:
        self.adapter = adapter
        self.stand = stand
        self.orc: orchestra.Orchestra
        self.sdk: Adapter

    @asynccontextmanager
    async def told(self, *first: str, rest: str = "ok", routes: int = 1) -> AsyncIterator[None]:
        """Have the SDK over an Orchestra, and its first provider answer so; see that all is ended afterwards.

        ``routes`` is by how many providers its model is served; the second answers always."""
        kind, model = self.adapter.kind, self.adapter.model
        origins = self.stand.begin(self.adapter.wire, self.adapter.as_json, list(first), rest)
        path = "/v1" if kind == "openai-compatible" else ""
        names = ("one", "two")
        accounts = {
            name: {"kind": kind, "base_url": origin + path, "api_key": f"key-of-{name}"}
            for name, origin in zip(names, origins, strict=True)
        }
        routes = [f"{name}/{name}-model" for name in names[:routes]]
        config = {"providers": accounts, "models": {model: {"routes": routes}}, "observe": {"status": False}}
        async with orchestra.Orchestra.from_config(config) as self.orc:
            self.sdk = self.adapter(self.orc)
            yield
            await self.ended()
            assert KEY not in self.seen()["headers"], "the caller's key went to another host"
            del self.sdk

    async def ask(self) -> str:
        """Return the text of a whole answer."""
        return str(await (asyncio.to_thread(self.sdk.ask) if self.sdk.blocking else self.sdk.ask()))

    async def read(self, *, until: Callable[[str], bool] = lambda piece: False) -> str:
        """Return the text of a streamed answer, or the first piece of it with which ``until`` holds."""

        def read_blocking() -> str:
            shown, stream = "", self.sdk.stream()
            for piece in stream:
                shown += piece
                if until(shown):
                    stream.close()
                    break
            return shown

        if self.sdk.blocking:
            return await asyncio.to_thread(read_blocking)
        shown, stream = "", self.sdk.stream()
        async for piece in stream:
            shown += piece
            if until(shown):
                await stream.aclose()
                break
        return shown

    def seen(self) -> Any:
        return self.stand.seen()

    def counted(self, what: str, traffic: str | None = None) -> int:
        pools = self.orc.snapshot()["pools"]
        return sum(n for pool in pools for name, n in pool[what].items() if traffic in (None, name))

    async def until(self, holds: Callable[[], bool]) -> bool:
        """Wait a second at most until ``holds``; return whether it does."""
        for _ in range(100):
            if holds():
                return True
            await asyncio.sleep(0.01)
        return holds()

    def nothing_is_left(self) -> bool:
        """Return whether no slot is held, and no request is under way at a provider."""
        return self.counted("in_use") == 0 and self.seen()["in_flight"] == 0

    async def ended(self) -> None:
        """Wait a moment until no slot is held and no request is under way at a provider."""

        def collected() -> bool:
            gc.collect()  # some SDKs leave a stream to it
            return self.nothing_is_left()

        if not await self.until(collected):
            held, under_way = self.counted("in_use"), self.seen()["in_flight"]
            raise AssertionError(f"left behind: {held} slots, {under_way} requests at the provider")


async def _raised(awaited: Awaitable[object]) -> Exception:
    try:
        answer = await awaited
    except Exception as error:
        return error
    raise AssertionError(f"it answered {answer!r} where an error was due")


def _typed(error: Exception, wanted: type[Exception]) -> None:
    assert isinstance(error, wanted), f"{type(error).__name__} where {wanted.__name__} was due: {error}"


async def plain(trial: Trial) -> None:
    async with trial.told():
        assert (answer := await trial.ask()) == TEXT, answer
        assert trial.seen()["requests"] == [1, 0]


async def streamed(trial: Trial) -> None:
    async with trial.told():
        assert (answer := await trial.read()) == TEXT, answer
        assert trial.seen()["requests"] == [1, 0]


async def error(trial: Trial) -> str:
    """What cannot succeed is asked once, and is the SDK's own error, with the provider's words."""
    async with trial.told(rest="bad"):
        for ask in (trial.ask, trial.read):
            error = await _raised(ask())
            _typed(error, trial.sdk.bad)
            assert "look here" in str(error), str(error)
        assert (requests := trial.seen()["requests"]) == [2, 0], requests
        return type(error).__name__


async def retried(trial: Trial) -> None:
    """A refusal for a moment is not seen."""
    for ask in (trial.ask, trial.read):
        async with trial.told("busy"):
            assert await ask() == TEXT
            assert (requests := trial.seen()["requests"]) == [2, 0], requests


async def refused(trial: Trial) -> str:
    """Refused for ever, it is asked as often as our policy says, with the SDK's own retries at their default."""
    async with trial.told(rest="busy"):
        due = 0
        for ask, tries in ((trial.ask, trial.sdk.own_tries), (trial.read, 1)):
            error = await _raised(ask())
            _typed(error, trial.sdk.busy)
            due += tries * RetryPolicy().interactive_attempts
            came = trial.seen()["requests"][0]
            assert came == due, f"{came} requests where {due} were due"
        return type(error).__name__


async def cancelled(trial: Trial) -> None:
    """Given up in mid-stream, in mid-wait, or by its reader's leaving, it holds nothing any more."""
    for how in ("leave",) if trial.adapter.blocking else ("leave", "cancel", "cancel before"):
        async with trial.told(rest="late" if how == "cancel before" else "slow"):
            if how == "leave":
                gc.disable()
                try:
                    assert await trial.read(until=bool)
                    ended = await trial.until(trial.nothing_is_left)
                finally:
                    gc.enable()
                assert ended or not trial.sdk.closes, "a stream that is left goes on"
                continue
            entered = asyncio.Event()

            def first(shown: str, entered: asyncio.Event = entered) -> bool:
                if shown:
                    entered.set()
                return False

            task = asyncio.create_task(trial.ask() if how == "cancel before" else trial.read(until=first))
            if how == "cancel before":
                await trial.until(lambda: trial.seen()["in_flight"] == 1)
            else:
                await asyncio.wait_for(entered.wait(), 4)
                await asyncio.sleep(0.05)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            else:
                raise AssertionError("the cancellation was swallowed")
            del task


async def cut(trial: Trial) -> str:
    """A stream that breaks off is an error, and is not asked for again."""
    async with trial.told(rest="cut"):
        error = await _raised(trial.read())
        _typed(error, trial.sdk.broken)
        assert (requests := trial.seen()["requests"]) == [1, 0], requests
        return type(error).__name__


async def fallback(trial: Trial) -> None:
    """Where the first route fails, the second answers, with its own key and model."""
    for ask in (trial.ask, trial.read):
        async with trial.told(rest="down", routes=2):
            assert await ask() == TEXT
            assert trial.seen()["requests"][1] == 1
            assert "key-of-two" in trial.seen()["headers"]


async def bulk(trial: Trial) -> None:
    """The class of the block that it is called in reaches the budget."""
    async with trial.told():
        with orchestra.bulk(job="nightly"):
            assert await trial.ask() == TEXT
            assert await trial.read() == TEXT
        assert await trial.ask() == TEXT
        granted = trial.counted("granted", "bulk"), trial.counted("granted", "interactive")
        assert granted == (2, 1), f"{granted[0]} calls were bulk, {granted[1]} interactive"


Behaviour = Callable[[Trial], Awaitable[str | None]]
BEHAVIOURS: tuple[Behaviour, ...] = (plain, streamed, error, retried, refused, cancelled, cut, fallback, bulk)
"""All of them, in the order of the table."""


async def try_out(behaviour: Behaviour, trial: Trial) -> dict[str, Any]:
    """Return what it came to: whether all was well, and what was raised, as it should be or not."""
    try:
        return {"ok": True, "note": await asyncio.wait_for(behaviour(trial), LONGEST) or ""}
    except Exception as error:
        return {"ok": False, "note": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def main(name: str, address: str, results: str) -> None:
    trial = Trial(ADAPTERS[name], reach(address))
    told = {}
    with asyncio.Runner() as runner:
        for behaviour in BEHAVIOURS:
            told[behaviour.__name__] = runner.run(try_out(behaviour, trial))
            Path(results).write_text(json.dumps(told), encoding="utf-8")  # what is known, should the next hang


if __name__ == "__main__":
    main(*sys.argv[1:])
