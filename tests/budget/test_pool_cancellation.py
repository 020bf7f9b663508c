"""Cancel at every await, at every turn of the loop: a cancelled caller holds nothing and stops nobody."""

import asyncio
import gc
import random

import pytest

from orchestra.budget import Pool
from orchestra.call import Charge
from orchestra.config import LimitsConfig
from orchestra.policies.traffic import TrafficClass

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK
ONE = Charge()


def clean(pool):
    state = pool.snapshot()
    return state["in_use"] == state["waiting"] == {"interactive": 0, "bulk": 0}


@pytest.mark.parametrize("turns", range(6))
async def test_cancelled_after_so_many_turns_while_it_would_be_granted(turns):
    pool = Pool(LimitsConfig(max_concurrency=1, requests_per_minute=600.0))
    task = asyncio.create_task(pool.acquire(ONE, traffic=INTERACTIVE))
    for _ in range(turns):
        await asyncio.sleep(0)
    if task.cancel():
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.snapshot()["dimensions"]["requests"]["used"] == pytest.approx(0.0, abs=0.5), "given back"
    else:
        task.result().refund()
    assert clean(pool)
    (await pool.acquire(ONE, traffic=INTERACTIVE)).keep()


@pytest.mark.parametrize("turns", range(6))
async def test_cancelled_after_so_many_turns_while_it_waits(turns):
    pool = Pool(LimitsConfig(max_concurrency=1))
    lease = await pool.acquire(ONE, traffic=INTERACTIVE)
    task = asyncio.create_task(pool.acquire(ONE, traffic=INTERACTIVE))
    behind = asyncio.create_task(pool.acquire(ONE, traffic=BULK))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    lease.keep()
    (await asyncio.wait_for(behind, 5)).keep()
    assert clean(pool)


@pytest.mark.parametrize("before", [True, False])
async def test_a_grant_that_races_the_cancellation_goes_to_the_next(before):
    pool = Pool(LimitsConfig(max_concurrency=1))
    lease = await pool.acquire(ONE, traffic=INTERACTIVE)
    task = asyncio.create_task(pool.acquire(ONE, traffic=INTERACTIVE))
    behind = asyncio.create_task(pool.acquire(ONE, traffic=INTERACTIVE))
    for _ in range(4):
        await asyncio.sleep(0)
    if before:
        task.cancel()
    lease.keep()  # granted to the first in line, whose task has not run since
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (await asyncio.wait_for(behind, 5)).keep()
    assert clean(pool)


async def test_a_timeout_around_it_is_clean():
    pool = Pool(LimitsConfig(max_concurrency=1))
    lease = await pool.acquire(ONE, traffic=BULK)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await pool.acquire(ONE, traffic=INTERACTIVE)
    lease.keep()
    assert clean(pool)


async def test_five_hundred_calls_cancelled_at_random_leave_the_limit_whole():
    """litellm 27955."""
    rng = random.Random(2)
    pool = Pool(LimitsConfig(max_concurrency=7))

    async def call():
        with await pool.acquire(ONE, traffic=rng.choice([INTERACTIVE, BULK])):
            for _ in range(rng.randrange(5)):
                await asyncio.sleep(0)

    for _ in range(5):
        tasks = [asyncio.create_task(call()) for _ in range(100)]
        while not all(task.done() for task in tasks):
            rng.choice(tasks).cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
    assert clean(pool)
    leases = [await asyncio.wait_for(pool.acquire(ONE, traffic=INTERACTIVE), 5) for _ in range(7)]
    assert pool.snapshot()["in_use"]["interactive"] == 7
    del leases


@pytest.mark.parametrize("turns", range(1, 5))
def test_a_waiter_that_is_destroyed_with_its_loop_is_dropped(turns):
    pool = Pool(LimitsConfig(max_concurrency=1))
    lease = pool.acquire_sync(ONE, traffic=INTERACTIVE)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # "Task was destroyed but it is pending"
    task = loop.create_task(pool.acquire(ONE, traffic=INTERACTIVE))
    for _ in range(turns):
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    del task
    gc.collect()
    lease.keep()
    pool.acquire_sync(ONE, traffic=INTERACTIVE, queue_bound=5.0).keep()
    assert clean(pool)


@pytest.mark.parametrize("turns", range(1, 5))
def test_a_waiter_that_is_held_on_to_after_its_loop_closed_is_dropped_at_its_turn(turns):
    pool = Pool(LimitsConfig(max_concurrency=1))
    lease = pool.acquire_sync(ONE, traffic=INTERACTIVE)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    task = loop.create_task(pool.acquire(ONE, traffic=INTERACTIVE))
    for _ in range(turns):
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    lease.keep()
    if turns > 2:  # it had reached its future
        pool.acquire_sync(ONE, traffic=INTERACTIVE, queue_bound=5.0).keep()
        assert clean(pool)
    del task
    gc.collect()
    pool.acquire_sync(ONE, traffic=INTERACTIVE, queue_bound=5.0).keep()
    assert clean(pool)
