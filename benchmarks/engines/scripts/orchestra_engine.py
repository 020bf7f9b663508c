"""Our engine in this process, asked as an application asks it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from harness import Answer, Request, answer, measure, read_job

from orchestra.localengine import EngineConfig, LocalEngine, SamplingParams


async def serve(engine: LocalEngine, requests: list[Request], *, in_turn: bool) -> list[Answer]:
    async def one(request: Request) -> Answer:
        params = SamplingParams(max_tokens=request.max_tokens, temperature=0, ignore_eos=True)
        whole = await engine.complete(request.prompt, params, traffic="bulk")
        return Answer(list(whole.token_ids), time.perf_counter())

    if in_turn:
        return [await one(request) for request in requests]
    return await asyncio.gather(*map(one, requests))


async def main() -> None:
    job = read_job()
    settings: dict[str, Any] = job["settings"]
    in_turn = settings.pop("in_turn", False)
    began = 0.0
    async with LocalEngine.load(job["model"], EngineConfig(threads=job["threads"], **settings)) as engine:
        loop = asyncio.get_running_loop()

        def from_thread(requests: list[Request]) -> list[Answer]:
            nonlocal began
            began = time.monotonic()
            return asyncio.run_coroutine_threadsafe(serve(engine, requests, in_turn=in_turn), loop).result()

        figures = await asyncio.to_thread(measure, job, from_thread)
        steps = [step for step in engine.steps() if step.at >= began]
    answer({**figures, "steps": [[step.prefill_tokens, step.decode_rows, step.seconds] for step in steps]})


if __name__ == "__main__":
    asyncio.run(main())
