"""One pool for several loops, threads and synchronous callers."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestra.budget import Budget, Pool
from orchestra.call import Charge
from orchestra.config import LimitsConfig, TrafficConfig
from orchestra.errors import AdmissionTimeout
from orchestra.policies.traffic import TrafficClass

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK
ONE = Charge()


class Peak:
    def __init__(self):
        self.now = self.most = self.calls = 0
        self._lock = threading.Lock()

    def __enter__(self):
        with self._lock:
            self.now += 1
            self.calls += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_):
        with self._lock:
            self.now -= 1


def wait_for_waiting(pool):
    """Wait until somebody interactive is in the queue."""
    until = time.monotonic() + 30
    while not pool.snapshot()["waiting"]["interactive"]:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_two_loops_and_a_thread_share_three_slots():
    """deer-flow 4294."""
    pool, peak = Pool(LimitsConfig(max_concurrency=3)), Peak()

    async def call():
        with await pool.acquire(ONE, traffic=INTERACTIVE), peak:
            while peak.most < 3:  # noqa: ASYNC110 - whoever has a slot keeps it until all three are taken
                await asyncio.sleep(0.001)

    async def crowd():
        await asyncio.gather(*(call() for _ in range(40)))

    def sync():
        for _ in range(20):
            with pool.acquire_sync(ONE, traffic=INTERACTIVE), peak:
                while peak.most < 3:
                    time.sleep(0.001)

    with ThreadPoolExecutor(3) as threads:
        for future in [
            threads.submit(asyncio.run, crowd()),
            threads.submit(asyncio.run, crowd()),
            threads.submit(sync),
        ]:
            future.result(timeout=50)
    assert (peak.most, peak.calls) == (3, 100)
    assert pool.snapshot()["in_use"]["interactive"] == 0


def test_four_loops_in_four_threads_keep_the_common_rate():
    """langchain 35783, openai-python 769."""
    pool = Pool(LimitsConfig(requests_per_minute=6000.0, burst_seconds=0.1))
    times = []

    async def crowd():
        async def call():
            (await pool.acquire(ONE, traffic=INTERACTIVE)).settle(ONE)
            times.append(time.monotonic())

        await asyncio.gather(*(call() for _ in range(15)))

    start = time.monotonic()
    threads = [threading.Thread(target=lambda: asyncio.run(crowd())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(55)
    assert len(times) == 60
    assert max(times) - start >= (60 - 10) / 100 - 0.01


def test_three_loops_in_a_row_share_one_budget():
    """litellm 7667."""
    budget = Budget(TrafficConfig())
    limits = LimitsConfig(requests_per_minute=6.0)

    async def call():
        pool = budget.pool("p", "k", limits, "m")
        (await pool.acquire(ONE, traffic=INTERACTIVE)).settle(ONE)
        return pool.snapshot()["dimensions"]["requests"]["used"]

    assert [round(asyncio.run(call())) for _ in range(3)] == [1, 2, 3]


def test_a_waiter_is_woken_on_its_own_loop_by_another_thread():
    pool = Pool(LimitsConfig(max_concurrency=1))
    lease = pool.acquire_sync(ONE, traffic=INTERACTIVE)

    def release():
        wait_for_waiting(pool)
        lease.keep()

    async def call():
        threading.Thread(target=release).start()
        with await asyncio.wait_for(pool.acquire(ONE, traffic=INTERACTIVE), 30) as own:
            return own.waited

    assert asyncio.run(call()) > 0


def test_a_busy_loop_keeps_no_other_from_its_turn():
    pool = Pool(LimitsConfig(requests_per_minute=6000.0, burst_seconds=0.01))
    busy, others_went = threading.Event(), threading.Event()

    async def hog():
        task = asyncio.create_task(pool.acquire(ONE, traffic=BULK))
        await asyncio.sleep(0)
        busy.set()
        in_time = others_went.wait(30)  # the loop stands still meanwhile
        (await task).keep()
        return in_time

    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(asyncio.run, hog())
        assert busy.wait(30)
        for _ in range(5):
            pool.acquire_sync(ONE, traffic=INTERACTIVE).keep()
        others_went.set()
        assert future.result(timeout=30), "they went only once the loop turned again"


def test_a_synchronous_wait_has_its_bound():
    pool = Pool(LimitsConfig(max_concurrency=1))
    lease = pool.acquire_sync(ONE, traffic=INTERACTIVE)
    start = time.monotonic()
    with pytest.raises(AdmissionTimeout):
        pool.acquire_sync(ONE, traffic=INTERACTIVE, queue_bound=0.05)
    assert time.monotonic() - start > 0.04
    lease.keep()
    assert pool.snapshot()["waiting"]["interactive"] == 0


def test_a_dropped_lease_wakes_the_next():
    pool = Pool(LimitsConfig(max_concurrency=1))
    holder = [pool.acquire_sync(ONE, traffic=INTERACTIVE)]
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(pool.acquire_sync, ONE, traffic=INTERACTIVE)
        wait_for_waiting(pool)
        holder.clear()
        future.result(timeout=30).keep()


def test_a_lease_that_ends_in_the_midst_of_the_pump_neither_blocks_nor_gets_lost():
    """A finalizer may run anywhere, in the thread that pumps too."""

    class Finalized:
        def __init__(self, lease):
            self.lease = lease
            self.cycle = self

        def __del__(self):
            self.lease.keep()

    pool = Pool(LimitsConfig(max_concurrency=2))
    now = pool._clock

    def clock():
        gc.collect()  # runs inside the pump, under its lock
        return now()

    pool._clock = clock
    for _ in range(15):
        Finalized(pool.acquire_sync(ONE, traffic=INTERACTIVE, queue_bound=30.0))
    gc.collect()
    assert pool.snapshot()["in_use"]["interactive"] == 0


def test_threads_that_end_leases_at_once_lose_no_wakeup():
    pool = Pool(LimitsConfig(max_concurrency=2))

    def worker():
        for _ in range(300):
            pool.acquire_sync(ONE, traffic=INTERACTIVE, queue_bound=50.0).keep()

    threads = [threading.Thread(target=worker) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(55)
    assert not any(thread.is_alive() for thread in threads)
    assert pool.snapshot()["granted"]["interactive"] == 2400


EXIT = """
import asyncio
from orchestra.budget import Pool
from orchestra.call import Charge
from orchestra.config import LimitsConfig
from orchestra.policies.traffic import TrafficClass

pool = Pool(LimitsConfig(max_concurrency=1, requests_per_minute=60.0))
held = pool.acquire_sync(Charge(), traffic=TrafficClass.BULK)

async def main():
    tasks = [asyncio.create_task(pool.acquire(Charge(), traffic=TrafficClass.BULK)) for _ in range(100)]
    await asyncio.sleep(0.05)
    globals()["tasks"] = tasks

asyncio.run(main())
"""


def test_a_process_exits_at_once_with_calls_held_and_queued():
    """curator 141: no traceback, exit under two seconds (and starting Python takes one of them here)."""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - start < 20


FORK = """
import os, sys
from orchestra.budget import Pool
from orchestra.call import Charge
from orchestra.config import LimitsConfig
from orchestra.policies.traffic import TrafficClass

pool = Pool(LimitsConfig(requests_per_minute=600.0, burst_seconds=0.1))
for _ in range(3):  # the third and second wait for the alarm's thread, which a fork does not copy
    pool.acquire_sync(Charge(), traffic=TrafficClass.BULK).keep()
if os.fork() == 0:
    for _ in range(3):
        pool.acquire_sync(Charge(), traffic=TrafficClass.BULK).keep()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_child_has_an_alarm_of_its_own():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
