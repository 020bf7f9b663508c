"""The pool on one event loop."""

import asyncio
import gc
import json
import math
import time
import tracemalloc

import pytest

from orchestra.budget import Pool
from orchestra.call import Charge, RateLimit
from orchestra.config import LimitsConfig, TrafficConfig
from orchestra.errors import AdmissionTimeout, BudgetExceeded, QueueFull
from orchestra.policies.traffic import TrafficClass

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK
ONE = Charge()


class Clock:
    """A clock that is set by hand, and an alarm that rings when it is."""

    def __init__(self):
        self.now = 0.0
        self.alarms = {}

    def __call__(self):
        return self.now

    def call_at(self, when, ring):
        self.alarms[ring] = min(when, self.alarms.get(ring, math.inf))

    async def advance(self, seconds):
        await settle_down()
        until = self.now + seconds
        while self.alarms and min(self.alarms.values()) <= until:
            ring = min(self.alarms, key=self.alarms.get)
            self.now = max(self.now, self.alarms.pop(ring))
            ring()
            await settle_down()
        self.now = until


async def settle_down():
    for _ in range(5):
        await asyncio.sleep(0)


def ours():
    """How many traced bytes our own modules hold."""
    gc.collect()
    files = [tracemalloc.Filter(True, f"*/{folder}/*") for folder in ("orchestra/budget", "policies")]
    return sum(stat.size for stat in tracemalloc.take_snapshot().filter_traces(files).statistics("filename"))


@pytest.fixture
def clock():
    return Clock()


def make(clock=None, *, traffic=None, **limits):
    timing = {} if clock is None else {"clock": clock, "call_at": clock.call_at}
    return Pool(LimitsConfig(**limits), traffic or TrafficConfig(), **timing)


def waiting(pool):
    return pool.snapshot()["waiting"]


async def test_a_call_that_fits_goes_after_one_turn_of_the_loop(clock):
    pool = make(clock, requests_per_minute=60.0)
    lease = await pool.acquire(ONE, traffic=INTERACTIVE)
    assert lease.waited == 0.0
    lease.settle(ONE)
    assert not clock.alarms, "nobody waits: no alarm"


async def test_nobody_is_let_in_before_all_who_ask_in_the_same_step_are_in_the_queue(clock):
    pool = make(clock, requests_per_minute=60.0, burst_seconds=1.0)
    order = []

    async def call(name, traffic):
        lease = await pool.acquire(ONE, traffic=traffic)
        order.append(name)
        lease.settle(ONE)

    tasks = [asyncio.create_task(call(number, BULK)) for number in range(100)]
    tasks.append(asyncio.create_task(call("person", INTERACTIVE)))
    await settle_down()
    assert order == ["person"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_two_thousand_gathered_calls_never_exceed_the_limit(clock):
    pool = make(clock, requests_per_minute=6000.0, burst_seconds=1.0)
    times = []

    async def call():
        (await pool.acquire(ONE, traffic=INTERACTIVE)).settle(ONE)
        times.append(clock.now)

    tasks = [asyncio.create_task(call()) for _ in range(2000)]
    await settle_down()
    assert len(times) == 100
    await clock.advance(19.1)
    await asyncio.gather(*tasks)
    assert all(sum(start <= t < start + 1.0 for t in times) <= 201 for start in range(20))


async def test_a_wait_ends_at_its_precise_instant_without_polling(clock):
    pool = make(clock, requests_per_minute=60.0, burst_seconds=1.0)
    await pool.acquire(ONE, traffic=INTERACTIVE)
    task = asyncio.create_task(pool.acquire(ONE, traffic=INTERACTIVE))
    await settle_down()
    assert list(clock.alarms.values()) == [1.0]
    await clock.advance(0.999)
    assert not task.done()
    await clock.advance(0.001)
    assert task.done()


async def test_what_is_posted_while_another_pumps_is_not_lost():
    leases = []
    pool = Pool(
        LimitsConfig(max_concurrency=1),
        clock=lambda: 0.0,
        call_at=lambda when, ring: leases[0].keep(),  # in the midst of the pump, after it has decided
    )
    leases.append(await pool.acquire(ONE, traffic=INTERACTIVE))
    (await asyncio.wait_for(pool.acquire(ONE, traffic=INTERACTIVE, queue_bound=9.0), 5)).keep()


async def test_real_time_is_kept_to_a_few_milliseconds():
    pool = make(requests_per_minute=3000.0, burst_seconds=0.02)
    await pool.acquire(ONE, traffic=INTERACTIVE)
    late = []
    for _ in range(40):
        start = time.monotonic()
        await pool.acquire(ONE, traffic=INTERACTIVE)
        late.append(time.monotonic() - start - 0.02)
    # a quarter of them finds the machine free; one that polled would be late with nearly all
    assert sorted(late)[10] < 0.02


async def test_bounds_and_their_errors(clock):
    pool = make(clock, max_concurrency=1)
    lease = await pool.acquire(ONE, traffic=BULK)
    task = asyncio.create_task(pool.acquire(ONE, traffic=INTERACTIVE, queue_bound=2.0))
    other = asyncio.create_task(pool.acquire(ONE, traffic=BULK, expires_at=5.0))
    await clock.advance(2.0)
    with pytest.raises(AdmissionTimeout):
        await task
    await clock.advance(3.0)
    with pytest.raises(AdmissionTimeout):
        await other
    assert waiting(pool) == {"interactive": 0, "bulk": 0}
    lease.keep()
    (await pool.acquire(ONE, traffic=BULK)).keep()


async def test_a_bound_that_is_certain_to_pass_fails_at_once(clock):
    pool = make(clock, requests_per_minute=60.0, burst_seconds=1.0)
    (await pool.acquire(Charge(requests=1.0), traffic=INTERACTIVE)).settle(Charge(requests=31.0))
    with pytest.raises(AdmissionTimeout) as caught:
        await pool.acquire(ONE, traffic=INTERACTIVE, queue_bound=10.0)
    assert caught.value.expected_wait == pytest.approx(31.0)
    assert clock.now == 0.0


async def test_a_full_queue(clock):
    pool = make(clock, traffic=TrafficConfig(max_waiting=1), max_concurrency=1)
    lease = await pool.acquire(ONE, traffic=BULK)
    task = asyncio.create_task(pool.acquire(ONE, traffic=BULK))
    await settle_down()
    with pytest.raises(QueueFull, match="1 bulk calls are waiting"):
        await pool.acquire(ONE, traffic=BULK)
    lease.keep()
    (await task).keep()


@pytest.mark.parametrize(
    "bad",
    [
        {"charge": Charge(requests=math.nan)},
        {"charge": Charge(tokens=-1.0)},
        {"charge": Charge(tokens=10**400)},
        {"queue_bound": -1.0},
        {"expires_at": math.nan},
        {"traffic": "urgent"},
    ],
)
async def test_bad_values_raise_before_anything_is_queued(clock, bad):
    pool = make(clock, max_concurrency=1)
    with pytest.raises(ValueError, match=r"must be|not a valid"):
        await pool.acquire(**{"charge": ONE, "traffic": BULK, **bad})
    with pytest.raises(ValueError, match=r"must be|not a valid"):
        pool.acquire_sync(**{"charge": ONE, "traffic": BULK, **bad})
    assert waiting(pool) == {"interactive": 0, "bulk": 0}


async def test_pause_and_resume(clock):
    pool = make(clock, requests_per_minute=600.0)
    pool.pause(30.0, "Retry-After")
    task = asyncio.create_task(pool.acquire(ONE, traffic=BULK))
    await settle_down()
    assert pool.snapshot()["paused"] == {"reason": "Retry-After", "seconds": 30.0}
    assert pool.snapshot()["head"] == {
        "traffic": "bulk",
        "job": None,
        "waits_for": "Retry-After",
        "seconds": 30.0,
    }
    await clock.advance(29.0)
    assert not task.done()
    await clock.advance(1.0)
    (await task).keep()
    pool.pause(math.inf, "insufficient_quota")
    with pytest.raises(AdmissionTimeout, match="insufficient_quota"):
        await pool.acquire(ONE, traffic=INTERACTIVE, queue_bound=600.0)
    assert pool.snapshot()["paused"] == {"reason": "insufficient_quota", "seconds": None}
    pool.resume()
    (await pool.acquire(ONE, traffic=INTERACTIVE)).keep()
    assert pool.snapshot()["paused"] is None
    with pytest.raises(ValueError, match="instant"):
        pool.pause(math.nan, "no")


async def test_limits_change_while_calls_wait(clock):
    pool = make(clock, max_concurrency=1)
    leases = [await pool.acquire(ONE, traffic=INTERACTIVE)]
    task = asyncio.create_task(pool.acquire(ONE, traffic=INTERACTIVE))
    await settle_down()
    pool.set_limits(LimitsConfig(max_concurrency=2))
    leases.append(await task)
    assert pool.snapshot()["dimensions"]["concurrency"]["limit"] == 2


async def test_the_snapshot_tells_all_and_is_plain(clock):
    pool = make(clock, requests_per_minute=60.0, tokens_per_minute=6000.0, max_concurrency=10)
    lease = await pool.acquire(Charge(tokens=6000.0), traffic=INTERACTIVE)
    task = asyncio.create_task(pool.acquire(Charge(tokens=100.0), traffic=BULK, job="nightly"))
    await settle_down()
    state = json.loads(json.dumps(pool.snapshot()))
    assert state["dimensions"]["tokens"] == {
        "source": "configured",
        "limit": 6000.0,
        "window": 60.0,
        "capacity": 6000.0,
        "available": 0.0,
        "used": 6000.0,
        "reserved": 6000.0,
        "interactive_reserve": 3000.0,
        "room_in": 31.0,
    }
    assert state["dimensions"]["concurrency"]["limit"] == 10
    assert state["in_use"] == {"interactive": 1, "bulk": 0}
    assert state["waiting"] == {"interactive": 0, "bulk": 1}
    assert state["granted"] == {"interactive": 1, "bulk": 0}
    assert state["head"] == {
        "traffic": "bulk",
        "job": "nightly",
        "waits_for": "tokens",
        "seconds": pytest.approx(31.0),
    }
    lease.settle(Charge(tokens=10.0))
    (await task).settle(Charge(tokens=90.0))
    state = pool.snapshot()
    assert state["head"] is None
    assert state["spent"] == {
        "requests": 2.0,
        "tokens": 100.0,
        "input_tokens": 0.0,
        "output_tokens": 0.0,
        "usd": 0.0,
    }


async def test_a_pool_without_limits_lets_people_in_and_counts():
    pool = Pool()
    leases = await asyncio.gather(*(pool.acquire(Charge(tokens=9.0), traffic=INTERACTIVE) for _ in range(3000)))
    assert pool.snapshot()["in_use"]["interactive"] == 3000
    for lease in leases:
        assert not pool.is_idle()
        lease.keep()
    assert pool.is_idle()
    assert pool.snapshot()["spent"]["tokens"] == 27000.0
    assert pool.snapshot()["dimensions"]["concurrency"]["limit"] is None


async def test_what_answers_teach_is_told_apart_from_what_is_configured(clock):
    pool = make(clock, requests_per_minute=6000.0)
    told = [RateLimit("requests", 600.0, 59.0, 0.1, name="requests")]
    lease = await pool.acquire(ONE, traffic=INTERACTIVE)
    pool.observe(lease, told)
    lease.settle(ONE)
    dimensions = json.loads(json.dumps(pool.snapshot()))["dimensions"]
    assert {name: one["source"] for name, one in dimensions.items()} == {
        "requests": "configured",
        "concurrency": None,
        "requests (learned)": "learned",
    }
    assert (dimensions["requests"]["limit"], dimensions["requests (learned)"]["limit"]) == (6000.0, 600.0)
    assert pool.is_idle() is False, "a used request comes back first"
    await clock.advance(1.0)
    assert pool.is_idle(), "what is learned is learned again"


async def test_a_refusal_with_a_hint_holds_everybody_back(clock):
    pool = make(clock, requests_per_minute=6000.0)
    lease = await pool.acquire(ONE, traffic=BULK)
    lease.settle(ONE)
    pool.throttled(lease, [], pause=3.0)
    tasks = [asyncio.create_task(pool.acquire(ONE, traffic=traffic)) for traffic in (BULK, INTERACTIVE)]
    await clock.advance(2.9)
    assert not any(task.done() for task in tasks)
    assert pool.snapshot()["paused"] == {"reason": "Retry-After", "seconds": pytest.approx(0.1)}
    await clock.advance(0.2)
    for task in tasks:
        (await task).settle(ONE)


async def test_the_loop_never_stalls_while_many_contend():
    """llama_index 21603, langchain 26914."""
    pool = make(requests_per_minute=60_000.0, burst_seconds=0.05, max_concurrency=10)
    gaps, running = [], True

    async def heartbeat():
        last = time.monotonic()
        while running:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    async def call():
        with await pool.acquire(ONE, traffic=BULK):
            await asyncio.sleep(0.001)

    beat = asyncio.create_task(heartbeat())
    await asyncio.gather(*(call() for _ in range(500)))
    running = False
    await beat
    assert len(gaps) > 10
    # the widest gaps may be the machine's; a loop that is blocked has no other
    assert sorted(gaps)[len(gaps) // 4] < 0.05


async def test_a_thousand_timed_out_waiters_leave_nothing_behind():
    """litellm 20059."""
    pool = make(max_concurrency=1)
    lease = await pool.acquire(ONE, traffic=INTERACTIVE)

    async def crowd():
        calls = [pool.acquire(ONE, traffic=INTERACTIVE, queue_bound=0.01) for _ in range(1000)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} == {AdmissionTimeout}

    await crowd()
    tracemalloc.start()
    await crowd()
    await settle_down()
    assert ours() < 10_000
    tracemalloc.stop()
    assert waiting(pool) == {"interactive": 0, "bulk": 0}
    lease.keep()
    (await pool.acquire(ONE, traffic=INTERACTIVE, queue_bound=0.0)).keep()  # now or never


async def test_a_slot_is_held_only_while_a_call_is_under_way():
    """oh-my-pi 3749: parents that wait for children hold nothing."""
    pool = make(max_concurrency=3)

    async def call():
        with await pool.acquire(ONE, traffic=INTERACTIVE):
            await asyncio.sleep(0.001)

    async def agent():
        await call()
        await asyncio.gather(call(), call())

    await asyncio.wait_for(asyncio.gather(*(agent() for _ in range(5))), 30)


async def test_memory_for_a_waiter_of_our_own_objects():
    pool = make(max_concurrency=1)
    lease = await pool.acquire(ONE, traffic=BULK)
    count = 2000
    tracemalloc.start()
    tasks = [asyncio.create_task(pool.acquire(ONE, traffic=BULK, job="j", queue_bound=60.0)) for _ in range(count)]
    await settle_down()
    each = ours() / count
    tracemalloc.stop()
    assert waiting(pool)["bulk"] == count
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    lease.keep()
    assert each <= 2048
    assert pool.snapshot()["in_use"]["bulk"] == 0


async def test_what_can_never_fit_is_refused(clock):
    pool = make(clock, tokens_per_day=10.0)
    with pytest.raises(BudgetExceeded):
        await pool.acquire(Charge(tokens=11.0), traffic=INTERACTIVE)
    (await pool.acquire(Charge(tokens=10.0), traffic=INTERACTIVE)).keep()
