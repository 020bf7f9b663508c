"""The retry policy on its own, as an application uses it: over tenacity, for any client's errors."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from email.utils import formatdate
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from tenacity import retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_fixed

import orchestra.policies
from orchestra.errors import AdmissionTimeout, AllRoutesFailed, ConnectionFailed, InputError, ProviderError
from orchestra.policies import Fault, Recovery, RetryBudget, RetryPolicy, fault_of
from orchestra.policies.traffic import TrafficClass

HALF = RetryPolicy(rand=lambda: 0.5)


class Sleeper:
    """Notes how long it was asked to sleep, and does not."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)

    def sync(self, seconds: float) -> None:
        self.slept.append(seconds)


def failing(*errors: BaseException) -> Any:
    """Return a function that raises these in turn, and then answers; and how often it was called."""
    left, calls = list(errors), []

    async def ask() -> str:
        calls.append(1)
        if left:
            raise left.pop(0)
        return "yes"

    return ask, calls


def status(code: int, sdk: str = "openai", **headers: str) -> Exception:
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    response: Any = httpx2.Response(code, headers=lines, request=httpx2.Request("POST", "http://x"))
    if sdk == "openai":
        return openai.APIStatusError("no", response=response, body=None)
    return anthropic.APIStatusError("no", response=response, body=None)


async def test_as_a_decorator():
    sleeper, (ask, calls) = Sleeper(), failing(ProviderError("busy", status=503), ConnectionError())
    wrapped = HALF.retrying(sleep=sleeper).wraps(ask)
    assert await wrapped() == "yes"
    assert len(calls) == 3
    assert sleeper.slept == [0.25, 0.5]


async def test_as_a_loop_of_attempts():
    sleeper, (ask, _) = Sleeper(), failing(TimeoutError())
    async for attempt in HALF.retrying(sleep=sleeper):
        with attempt:
            reply = await ask()
    assert (reply, sleeper.slept) == ("yes", [0.25])


def test_in_synchronous_code():
    sleeper, left = Sleeper(), [ConnectionResetError(), ConnectionResetError()]

    @HALF.retrying_sync(sleep=sleeper.sync).wraps
    def ask() -> str:
        if left:
            raise left.pop()
        return "yes"

    assert ask() == "yes"
    assert sleeper.slept == [0.25, 0.5]


@pytest.mark.parametrize(("traffic", "tries"), [("interactive", 3), (TrafficClass.BULK, 8)])
async def test_each_class_has_its_number_of_tries_and_the_last_error_is_raised_as_it_was(traffic: Any, tries: int):
    errors = [status(500) for _ in range(9)]
    ask, calls = failing(*errors)
    with pytest.raises(openai.APIStatusError) as caught:
        await HALF.retrying(traffic=traffic, sleep=Sleeper())(ask)
    assert caught.value is errors[tries - 1]
    assert len(calls) == tries


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("headers", "least"),
    [
        ({"retry_after": "7"}, 7),
        ({"retry_after_ms": "1500"}, 1.5),
        ({"retry_after_ms": "1500", "retry_after": "9"}, 1.5),
        ({"retry_after": "Fri, 01 Jan 2010 00:00:00 GMT"}, 0),
        ({"retry_after": "soon"}, 0),
        ({}, 0),
    ],
)
async def test_a_demanded_wait_is_a_floor(sdk: str, headers: dict[str, str], least: float):
    sleeper, (ask, _) = Sleeper(), failing(status(429, sdk, **headers))
    await HALF.retrying(sleep=sleeper)(ask)
    assert least <= sleeper.slept[0] <= least + 3.5


def test_a_demanded_wait_may_be_a_date():
    wait = fault_of(status(503, retry_after=formatdate(time.time() + 60, usegmt=True))).retry_after
    assert wait is not None
    assert 55 < wait <= 60


async def test_our_own_errors_carry_it_too():
    sleeper = Sleeper()
    ask, _ = failing(ProviderError("no", status=429, retry_after=4), AdmissionTimeout("late", expected_wait=6))
    await HALF.retrying(sleep=sleeper)(ask)
    assert sleeper.slept == [4.25, 6.5]


async def test_a_bound_is_kept_and_a_wait_beyond_it_not_begun():
    sleeper, (ask, calls) = Sleeper(), failing(*[status(429, retry_after="4") for _ in range(9)])
    with pytest.raises(openai.APIStatusError):
        await HALF.retrying(traffic="bulk", timeout=10, sleep=sleeper)(ask)
    assert len(calls) == len(sleeper.slept) + 1 == 3
    assert sum(sleeper.slept) <= 10


async def test_until_its_deadline_bulk_is_tried_without_a_count():
    sleeper, (ask, calls) = Sleeper(), failing(*[status(500) for _ in range(20)])
    assert await HALF.retrying(traffic="bulk", timeout=3600, sleep=sleeper)(ask) == "yes"
    assert len(calls) == 21
    assert max(sleeper.slept) <= 30


async def test_an_empty_budget_ends_interactive_calls_and_makes_bulk_wait():
    budget = RetryBudget(ratio=0, per_second=0.001, capacity=1)
    ask, calls = failing(*[status(500) for _ in range(9)])
    with pytest.raises(openai.APIStatusError):
        await HALF.retrying(budget=budget, sleep=Sleeper())(ask)
    assert len(calls) == 2
    sleeper, (ask, _) = Sleeper(), failing(status(500))
    await HALF.retrying(traffic="bulk", budget=budget, sleep=sleeper)(ask)
    assert sleeper.slept[0] > 900


async def test_calls_fill_their_budget():
    budget = RetryBudget(ratio=0.5, per_second=1e-9, capacity=1)
    assert budget.take(time.monotonic())
    for tries in (1, 2):
        ask, calls = failing(status(500))
        try:
            await HALF.retrying(budget=budget, sleep=Sleeper())(ask)
        except openai.APIStatusError:
            pass
        assert len(calls) == tries


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt()])
async def test_what_is_meant_to_end_the_call_ends_it(error: BaseException):
    ask, calls = failing(error)
    with pytest.raises(type(error)):
        await HALF.retrying(sleep=Sleeper())(ask)
    assert len(calls) == 1


async def test_tenacitys_own_strategies_go_with_it():
    sleeper, (ask, calls) = Sleeper(), failing(KeyError("x"), status(500), status(500))
    ours = HALF.retrying(sleep=sleeper)
    mixed = ours.copy(
        retry=lambda state: ours.retry(state) or retry_if_exception_type(KeyError)(state),  # type: ignore[operator]
        wait=lambda state: ours.wait(state) + wait_fixed(1)(state),  # type: ignore[operator]
        stop=stop_after_attempt(4),
    )
    assert await mixed(ask) == "yes"
    assert len(calls) == 4
    assert sleeper.slept == [1.0, 1.5, 2.0]


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "recovery"),
    [
        (status(408), Recovery.RETRY),
        (status(409), Recovery.RETRY),
        (status(529, "anthropic"), Recovery.RETRY),
        (status(400), Recovery.NONE),
        (status(401), Recovery.NONE),
        (status(402), Recovery.PAUSE),
        (status(429, x_should_retry="false"), Recovery.NONE),
        (ProviderError("spent", status=429, code="insufficient_quota"), Recovery.PAUSE),
        (httpx.ConnectError("refused"), Recovery.RETRY),
        (httpx2.ReadTimeout("late"), Recovery.RETRY),
        (
            httpx.HTTPStatusError("x", request=httpx.Request("GET", "http://x"), response=httpx.Response(503)),
            "retry",
        ),
        (openai.APIConnectionError(request=httpx2.Request("GET", "http://x")), Recovery.RETRY),
        (anthropic.APITimeoutError(request=httpx2.Request("GET", "http://x")), Recovery.RETRY),
        (ConnectionFailed("reset", sent=True), Recovery.RETRY),
        (caused(AllRoutesFailed("none"), ConnectionFailed("reset", sent=True)), Recovery.RETRY),
        (caused(RuntimeError("lookup"), socket.gaierror()), Recovery.RETRY),
        (InputError("bad"), Recovery.NONE),
        (FileNotFoundError(2, "no such file", "settings.toml"), Recovery.NONE),
        (ValueError("x"), Recovery.NONE),
    ],
)
def test_any_clients_errors_are_read(error: Exception, recovery: Recovery):
    assert fault_of(error).recovery == recovery


async def test_errors_may_be_read_another_way():
    ask, calls = failing(ValueError("a bad draw"), ValueError("a bad draw"))
    again = Fault(Recovery.RETRY, "a bad draw")
    assert await HALF.retrying(fault_of=lambda error: again, sleep=Sleeper())(ask) == "yes"
    assert len(calls) == 3


def test_they_are_at_hand_and_loaded_on_use_only():
    assert {getattr(orchestra.policies, name) for name in orchestra.policies.__all__} >= {RetryPolicy, fault_of}
    with pytest.raises(AttributeError, match="nonsense"):
        _ = orchestra.policies.nonsense
    code = "import sys, orchestra.policies; print('tenacity' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
