"""Continuous batching against static batches, on requests of very different lengths, through the whole engine.

The requests have the lengths of ``make bench-engine``: log-normal prompts, outputs of a heavy tail. All are asked
for at once. Both have the same slots. In a static batch a slot whose request has ended stays empty until all have.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial

from engines.workload import Request, make_workload

from gpu.engines import open_engine
from gpu.figures import Figure, Target
from gpu.lab import Lab
from orchestra.localengine import LocalEngine, SamplingParams
from orchestra.localengine.config import SchedulerName
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.settled_config import SettledConfig

__all__ = ["model_of", "requests_of", "run", "warm_up"]

_REQUESTS, _SLOTS = 640, 64
_TARGET = Target(least=3.0)
_BYTES_OF_8B = 36 << 30  # its weights, some of which exist twice while they are packed, a pool and activations


def run(lab: Lab) -> Iterator[Figure]:
    """Measure both, and how many times as fast the first is."""
    name, spec = model_of(lab)
    requests, slots = requests_of(lab, spec.vocab_size)
    rates: dict[str, float] = {}
    schedulers: tuple[tuple[str, SchedulerName], ...] = (("continuous", "classes"), ("static", "static"))
    work = [
        (
            f"{kind} batching {name}",
            partial(_measure, lab, f"{kind} batching {name}", spec, scheduler, requests, slots, rates),
        )
        for kind, scheduler in schedulers
    ]
    yield from lab.attempts(work)
    what = "continuous over static batching"
    if len(rates) == len(schedulers):
        yield Figure(what=what, value=rates["classes"] / rates["static"], unit="x", target=_TARGET)
    else:
        yield Figure(what=what, note="left out: one of them was not measured")


def model_of(lab: Lab) -> tuple[str, ModelSpec]:
    """The larger of two models that there is room for."""
    name = "8B" if lab.free_bytes > _BYTES_OF_8B else "1B"
    return name, lab.model(name)


def requests_of(lab: Lab, vocab: int) -> tuple[list[Request], int]:
    """The requests, and how many run at once. Token ids are random, lengths are not."""
    count, slots = (5, 2) if lab.rehearsal else (_REQUESTS, _SLOTS)
    rng = random.Random(11)
    requests = []
    for request in make_workload(lambda text: [0] * len(text), count):
        prompt, output = len(request.prompt), request.max_tokens
        if lab.rehearsal:
            prompt, output = 1 + prompt % 20, 1 + output % 5
        requests.append(Request(tuple(rng.randrange(vocab) for _ in range(prompt)), output))
    return requests, slots


def _measure(
    lab: Lab,
    what: str,
    spec: ModelSpec,
    scheduler: SchedulerName,
    requests: Sequence[Request],
    slots: int,
    rates: dict[str, float],
) -> Iterator[Figure]:
    config = SettledConfig(
        scheduler=scheduler,
        max_num_seqs=slots,
        step_tokens=max(slots, 32 if lab.rehearsal else 4096),
        interactive_slots=0,
        ttft_target_ms=1000.0,  # nobody interactive waits for a step to end
    )
    longest = max(len(request.prompt) + request.max_tokens for request in requests)
    engine = open_engine(lab, spec, config, tokens=slots * (longest + config.block_size))
    what = f"{what}, {len(requests)} requests, {slots} at once"
    try:
        seconds, steps = asyncio.run(_serve(engine, requests, lab.time_left))
    except TimeoutError:
        yield Figure(what=what, note="left out: it was not done in time")
        return
    output = sum(request.max_tokens for request in requests)
    rates[scheduler] = output / seconds
    yield Figure(
        what=what,
        value=output / seconds,
        unit="tokens/s",
        note=f"{seconds:.1f} s, {steps} steps, {output / steps:.1f} tokens a step",
    )


async def _serve(engine: LocalEngine, requests: Sequence[Request], patience: float) -> tuple[float, int]:
    """Serve all requests, after a few that warm up: seconds, and steps."""
    async with asyncio.timeout(patience), engine:
        await asyncio.gather(*(_whole(engine, request) for request in warm_up(requests)))
        before = engine.stats()["steps"]
        began = time.perf_counter()
        await asyncio.gather(*(_whole(engine, request) for request in requests))
        return time.perf_counter() - began, engine.stats()["steps"] - before


def warm_up(requests: Sequence[Request], count: int = 64) -> list[Request]:
    """Others with prompts as long, and short outputs: what they compile is not compiled later on."""
    return [Request(request.prompt[::-1], min(request.max_tokens, 4)) for request in requests[:count]]


async def _whole(engine: LocalEngine, request: Request) -> None:
    params = SamplingParams(max_tokens=request.max_tokens, temperature=0, ignore_eos=True)
    whole = await engine.complete(request.prompt, params, traffic="bulk")
    if len(whole.token_ids) != request.max_tokens:
        raise RuntimeError(f"{len(whole.token_ids)} tokens came back instead of {request.max_tokens}")
