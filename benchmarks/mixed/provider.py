"""The account that the load is carried to: a scripted provider in a process of its own.

Takes a variant's name, prints its address, is told in a line when the load starts, serves until its input ends,
then prints what arrived: for each request when, answered with what, and for how many tokens it counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from mixed.scenario import CHUNK, VARIANTS, Scenario
from orchestra.testing import Limits, Reply, ScriptedProvider, StreamScript, Tenant


def limits_of(scenario: Scenario, factor: float = 1.0) -> Limits:
    return Limits(
        requests_per_minute=scenario.requests_per_minute * factor,
        tokens_per_minute=scenario.tokens_per_minute * factor,
        burst_seconds=scenario.burst_seconds,
        charge="usage",
        headers=scenario.headers,
    )


def provider_of(scenario: Scenario) -> ScriptedProvider:
    """Return the provider that a scenario describes."""
    text = scenario.text
    chunks = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]
    return ScriptedProvider(
        default=Reply(stream=StreamScript(chunks=chunks, gap=scenario.stream_gap)),
        text=text,
        service_time=scenario.service_time,
        limits=limits_of(scenario),
        tenant=Tenant(*scenario.tenant) if scenario.tenant else None,
        tokens_per_character=scenario.tokens_per_character,
    )


async def main() -> None:
    scenario = VARIANTS[sys.argv[1]]
    loop = asyncio.get_running_loop()
    async with provider_of(scenario) as provider:
        print(json.dumps({"base_url": provider.base_url, "started": provider.started_at}), flush=True)
        line = await asyncio.to_thread(sys.stdin.readline)
        start = json.loads(line)["start"] if line else loop.time()
        for at, factor in scenario.changes:
            loop.call_at(start + at, setattr, provider, "limits", limits_of(scenario, factor))
        await asyncio.to_thread(sys.stdin.read)
        log = [[hit.at, hit.status, hit.tokens] for hit in provider.log if hit.method == "POST"]
        print(json.dumps({"hits": log, "peak": provider.peak}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
