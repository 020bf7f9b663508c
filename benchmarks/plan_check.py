"""What `orchestra plan` says of this machine, against what the engine does on it: concurrency, and decode speed.

    python benchmarks/plan_check.py                  # two minutes on two cores
    python benchmarks/plan_check.py --rounds 1

Concurrency: with a small KV cache, as many requests as are planned for run at once without giving up a place, and
one more does not. Speed: each round measures the machine, as the plan does, and then has the engine decode 16
requests, 8, 4 and one, at two lengths of what stands before. Medians over the rounds are compared.

One JSON line goes to standard output for each comparison, the verdicts to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from rich.console import Console
from verdicts import Verdict, show_verdicts

from orchestra.localengine import EngineConfig, LocalEngine, SamplingParams
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.service.stream import DeltaStream
from orchestra.localengine.step_record import StepRecord
from orchestra.plan.device import Device
from orchestra.plan.length_mix import LengthMix, RequestSize
from orchestra.plan.models import read_model
from orchestra.plan.report import Wanted, make_plan
from orchestra.plan.this_machine import measure_this_machine

MODEL = "smollm2-135m"
BATCHES = (16, 8, 4, 1)
PROMPTS = (96, 384)
STEPS = 14
LONGEST = 256
"""Tokens of an output, which no request comes to the end of."""
SIZES = (RequestSize(30, 18), RequestSize(31, 18), RequestSize(100, 12))
KV_BYTES = 32 << 20
WITHIN = 0.25
"""By how much of what was measured a predicted speed may differ."""

_ALL_AT_ONCE = EngineConfig(step_tokens=512, ttft_target_ms=60_000, interactive_slots=0, prefix_cache=False)
"""Steps are as long as they become: nobody interactive waits for their end."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Steps of ``batch`` requests, with a mean of ``context`` tokens before each, and their output in a second."""

    batch: int
    context: float
    tokens_per_s: float


# --- Concurrency -----------------------------------------------------------------------------------------------


def planned(spec: ModelSpec, device: Device, size: RequestSize) -> int:
    """Return how many requests of that size the plan lets run at once."""
    wanted = Wanted(mix=LengthMix((size,)), precision="float32", kv_bytes=KV_BYTES)
    return make_plan(MODEL, spec, device, wanted, on_cpu=True).performance.at_p50


async def fit(size: RequestSize, count: int) -> bool:
    """Return whether so many requests of that size run together to their ends, each with all that it needs."""
    config = replace(_ALL_AT_ONCE, max_num_seqs=count, kv_bytes=KV_BYTES)
    async with LocalEngine.load(MODEL, config) as engine, _decoding(engine, size, count) as outputs:
        await outputs.until(lambda: engine.stats()["displacements"] or min(outputs.counts) == size.output)
        together = max(record.bulk for record in engine.steps())
        return engine.stats()["displacements"] == 0 and together == count


# --- Speed -----------------------------------------------------------------------------------------------------


async def decode(engine: LocalEngine, prompt: int) -> list[Decoded]:
    """Have the engine decode every batch, the largest first: of its requests some are given up for the next."""
    found = []
    async with _decoding(engine, RequestSize(prompt, LONGEST), BATCHES[0]) as outputs:
        await outputs.until(lambda: min(outputs.counts) > 0)  # all prompts are computed
        for batch in BATCHES:
            await outputs.keep(batch)
            before, began = list(outputs.counts), time.monotonic()
            await outputs.until(lambda before=before: all(map(_is_ahead, outputs.counts, before)))
            context = prompt + statistics.fmean((*before, *outputs.counts))
            found.append(Decoded(batch, context, speed([r for r in engine.steps() if r.at >= began], batch)))
    return found


def _is_ahead(count: int, before: int) -> bool:
    return count >= before + STEPS


def speed(records: Sequence[StepRecord], batch: int) -> float:
    """Return the output tokens a second of the steps that decode ``batch`` rows and nothing else.

    From one such step's beginning to the next one's: what the engine does between steps is part of it.
    """
    alike = [record.decode_rows == batch and not record.prefill_tokens for record in records]
    took = [
        later.at - earlier.at
        for (earlier, later), both in zip(pairwise(records), map(all, pairwise(alike)), strict=True)
        if both
    ]
    return batch / statistics.median(took)


class _Outputs:
    """How many output tokens each request has so far."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._grew = asyncio.Event()

    def read(self, stream: DeltaStream) -> None:
        """Read one more request."""
        self._tasks.append(asyncio.create_task(self._read(stream, len(self.counts))))
        self.counts.append(0)

    async def until(self, reached: Callable[[], object]) -> None:
        """Return when that is true, which is asked with every token. Raises what the engine did."""
        while not reached():
            self._grew.clear()
            await self._grew.wait()
            for task in self._tasks:
                if task.done():
                    task.result()

    async def keep(self, count: int) -> None:
        """Give up all but the first ``count``."""
        others = self._tasks[count:]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        del self._tasks[count:], self.counts[count:]

    async def _read(self, stream: DeltaStream, number: int) -> None:
        try:
            async with stream as deltas:
                async for delta in deltas:
                    self.counts[number] += len(delta.token_ids)
                    self._grew.set()
        finally:
            self._grew.set()


@asynccontextmanager
async def _decoding(engine: LocalEngine, size: RequestSize, count: int) -> AsyncIterator[_Outputs]:
    """Have ``count`` requests of that size answered, each of other random words."""
    params = SamplingParams(max_tokens=size.output, temperature=0, ignore_eos=True)
    outputs = _Outputs()
    for _ in range(count):
        prompt = [random.randrange(1000, 40_000) for _ in range(size.prompt)]
        outputs.read(engine.stream(prompt, params, traffic="bulk"))
    try:
        yield outputs
    finally:
        await outputs.keep(0)


# --- The run ---------------------------------------------------------------------------------------------------


async def check_concurrency(spec: ModelSpec, device: Device) -> list[Verdict]:
    verdicts = []
    for size in SIZES:
        count = planned(spec, device, size)
        fits, one_more = await fit(size, count), await fit(size, count + 1)
        _tell("concurrency", {"tokens": size.total, "planned": count, "fits": fits, "one_more_fits": one_more})
        told = f"{count} {'do' if fits else 'do not'}, {count + 1} {'do' if one_more else 'do not'}"
        verdicts.append((f"of {size.total} tokens at once", f"{count}, exactly", told, fits and not one_more))
    return verdicts


async def check_speed(spec: ModelSpec, rounds: int) -> list[Verdict]:
    predicted: dict[tuple[int, int], list[float]] = defaultdict(list)
    measured: dict[tuple[int, int], list[float]] = defaultdict(list)
    async with LocalEngine.load(MODEL, replace(_ALL_AT_ONCE, max_num_seqs=BATCHES[0])) as engine:
        for number in range(rounds):
            device = await asyncio.to_thread(measure_this_machine, spec, "float32")
            _tell("machine, as measured", {"round": number + 1, **asdict(device)})
            plan = make_plan(
                MODEL, spec, device, Wanted(mix=LengthMix((SIZES[0],)), precision="float32"), on_cpu=True
            )
            for prompt in PROMPTS:
                for one in await decode(engine, prompt):
                    case = (one.batch, prompt)
                    predicted[case].append(plan.roofline.decode(one.batch, one.context).tokens_per_second)
                    measured[case].append(one.tokens_per_s)
                    _tell("decode", {"round": number + 1, **_case(case, predicted[case][-1], one.tokens_per_s)})
    verdicts = []
    for case in sorted(measured):
        told = _case(case, statistics.median(predicted[case]), statistics.median(measured[case]))
        _tell("decode, medians", told)
        verdicts.append(
            (
                f"tokens/s of {case[0]} after {case[1]}",
                f"within {WITHIN:.0%}",
                f"{told['predicted']} planned, {told['measured']} reached: {told['ratio']:.2f}",
                abs(told["ratio"] - 1) <= WITHIN,
            )
        )
    return verdicts


def _case(case: tuple[int, int], predicted: float, measured: float) -> dict[str, Any]:
    batch, prompt = case
    return {
        "batch": batch,
        "prompt": prompt,
        "predicted": round(predicted, 1),
        "measured": round(measured, 1),
        "ratio": round(predicted / measured, 3),
    }


async def check(rounds: int) -> list[Verdict]:
    _, spec = read_model(MODEL)
    some = Device(name="any", memory=8 << 30, bandwidth=1e10, flops={"float32": 1e11}, source="concurrency alone")
    return [*await check_concurrency(spec, some), *await check_speed(spec, rounds)]


def _tell(what: str, figures: Mapping[str, Any]) -> None:
    machine = {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 2), "python": platform.python_version()}
    print(json.dumps({"benchmark": "plan", "what": what, **figures, "machine": machine}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of every speed (default: 3)")
    verdicts = asyncio.run(check(parser.parse_args().rounds))
    show_verdicts(verdicts, {}, Console(stderr=True, width=110))
    sys.exit(0 if all(holds for *_, holds in verdicts) else 1)


if __name__ == "__main__":
    main()
