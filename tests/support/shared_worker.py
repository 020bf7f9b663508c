"""One process of several that share a budget: python shared_worker.py FILE TRAFFIC SECONDS LIMITS...

It makes calls of one class, writes ``ready``, waits for a line, and then writes a line for each grant: instant
(monotonic), seconds waited, tokens.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

from orchestra.budget import Budget
from orchestra.call import Charge
from orchestra.config import BudgetConfig, LimitsConfig
from orchestra.policies.traffic import TrafficClass


async def main() -> None:
    file, traffic, seconds, limits, tokens, hold = sys.argv[1:]
    budget = Budget(backend=BudgetConfig(backend=f"sqlite:{file}"))
    pool = budget.pool("openai", "key", LimitsConfig(**json.loads(limits)), "gpt-5")
    charge = Charge(tokens=float(tokens))
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + float(seconds)

    async def call() -> None:
        lease = await pool.acquire(charge, traffic=TrafficClass(traffic.partition(":")[0]))
        # when it was let in, not when a busy machine came to write that down
        print(lease.ticket.granted_at, lease.waited, charge.tokens, flush=True)
        await asyncio.sleep(float(hold))
        lease.settle(charge)

    tasks = set()
    rng = random.Random(1)
    while time.monotonic() < until:
        if traffic == "bulk":
            while len(tasks) < 300:
                tasks.add(asyncio.create_task(call()))
            await asyncio.sleep(0.05)
        else:
            tasks.add(asyncio.create_task(call()))
            await asyncio.sleep(rng.expovariate(float(traffic.partition(":")[2])))
        tasks = {task for task in tasks if not task.done()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    budget.close()


if __name__ == "__main__":
    asyncio.run(main())
