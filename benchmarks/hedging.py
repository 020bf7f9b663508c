"""What sending late calls twice does to the slowest answers, and what it costs.

    python benchmarks/hedging.py                # 20,000 calls, 2 % of the attempts ten times as slow
    python benchmarks/hedging.py --slow 0.01 --share 0.02

The whole dispatcher with its budget, in virtual time, over a wire that answers by a seeded lottery: the same
calls meet the same luck in every run, and the figures do not depend on the machine. One JSON line for each share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

from orchestra.budget import Budget
from orchestra.call import Body, Call, Headers
from orchestra.config import parse_config
from orchestra.dispatch import Dispatcher
from orchestra.policies.rank import nearest_rank
from orchestra.simulate.virtual_loop import VirtualLoop
from orchestra.wire import WireResponse

ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9},
}


class LotteryWire:
    """Answers after 80 to 120 ms, a share ``slow`` of the requests after ``factor`` times that."""

    def __init__(self, *, slow: float, factor: float, seed: int) -> None:
        self._random = random.Random(seed)
        self._slow = slow
        self._factor = factor
        self.requests = 0

    async def send(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: Body,
        *,
        connect_timeout: float | None,
        read_timeout: float | None,
    ) -> WireResponse:
        self.requests += 1
        factor = self._factor if self._random.random() < self._slow else 1.0
        await asyncio.sleep(self._random.uniform(0.08, 0.12) * factor)
        return WireResponse(200, (("content-type", "application/json"),), _body(), _nothing)

    async def aclose(self) -> None:
        return None


async def _body() -> AsyncIterator[bytes]:
    yield json.dumps(ANSWER).encode()


async def _nothing() -> None:
    return None


async def _measure(calls: int, per_second: float, share: float, wire: LotteryWire) -> list[float]:
    loop = asyncio.get_running_loop()
    config = parse_config(
        {
            "providers": {"p": {"kind": "openai-compatible", "base_url": "http://p.invalid", "api_key": "k"}},
            "traffic": {"hedge_share": share},
        }
    )
    dispatcher = Dispatcher(config, budget=Budget(config.traffic, clock=loop.time), wire=wire, clock=loop.time)
    latencies: list[float] = []

    async def ask() -> None:
        began = loop.time()
        payload = {"model": "p/m", "messages": [{"role": "user", "content": "Hi"}]}
        await (await dispatcher.send(Call.originate("/v1/chat/completions", payload))).read()
        latencies.append(loop.time() - began)

    async with asyncio.TaskGroup() as group:
        for _ in range(calls):
            group.create_task(ask())
            await asyncio.sleep(1 / per_second)
    return latencies


def run(
    share: float,
    *,
    calls: int = 20_000,
    per_second: float = 100.0,
    slow: float = 0.02,
    factor: float = 10.0,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the latencies' percentiles in seconds, and the share of requests beyond one a call."""
    wire = LotteryWire(slow=slow, factor=factor, seed=seed)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        latencies = runner.run(_measure(calls, per_second, share, wire))
    return {
        "hedge_share": share,
        "calls": calls,
        "slow": slow,
        "factor": factor,
        "seed": seed,
        **{f"p{p:g}_s": round(nearest_rank(latencies, p / 100), 4) for p in (50, 95, 98, 99, 99.9)},
        "extra_requests": round(wire.requests / calls - 1, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--per-second", type=float, default=100.0)
    parser.add_argument("--slow", type=float, default=0.02, help="share of the attempts that are slow")
    parser.add_argument("--factor", type=float, default=10.0, help="how many times as slow they are")
    parser.add_argument("--share", type=float, action="append", help="share sent twice (default: 0, then 0.05)")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    for share in options.pop("share") or [0.0, 0.05]:
        print(json.dumps(run(share, **options)), flush=True)


if __name__ == "__main__":
    main()
