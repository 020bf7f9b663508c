"""How long a step of our engine takes by what is in it: decode rows, a prompt, or both. No scheduler is involved.

Kinds of steps take turns, so that whatever else the machine does falls on all of them alike.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from harness import answer, read_job

from orchestra.localengine import EngineConfig, SamplingParams
from orchestra.localengine.service.loading import prepare_torch
from orchestra.localengine.step import RowInput

DECODE = (1, 2, 4, 8, 16, 32, 64)
PREFILL = (32, 64, 128, 256, 512)
MIXED = ((8, 64), (16, 64), (16, 128), (32, 128), (32, 256))
"""Decode rows, and tokens of a prompt that is computed in the same step."""
CONTEXT = 128
"""Tokens before each decode row, as the workload's requests have on average."""
GREEDY = SamplingParams(temperature=0)


def main() -> None:
    job = read_job()
    prepare_torch()
    from orchestra.localengine.execution.runner import Runner
    from orchestra.localengine.weights.opening import load_model

    block_size = EngineConfig().block_size
    files = load_model(Path(job["model"]))
    kinds = [*((rows, 0) for rows in DECODE), *((0, tokens) for tokens in PREFILL), *MIXED]
    steps = {kind: step(*kind, block_size) for kind in kinds}
    blocks = max(1 + max(block for row in rows for block in row.block_table) for rows in steps.values())
    runner = Runner(files.spec, files.weights, num_blocks=blocks, block_size=block_size, threads=job["threads"])
    seconds: dict[tuple[int, int], list[float]] = {kind: [] for kind in kinds}
    for repeat in range(job["repeats"] + 1):
        for kind, rows in steps.items():
            began = time.perf_counter()
            runner.run(rows)
            if repeat:  # the first one warms up
                seconds[kind].append(time.perf_counter() - began)
    answer({"context": CONTEXT, "steps": [[*kind, statistics.median(took)] for kind, took in seconds.items()]})


def step(decode_rows: int, prefill_tokens: int, block_size: int) -> list[RowInput]:
    """Return the rows of a step; each has its own blocks."""
    rows = []
    first = 0
    lengths = [CONTEXT + 1] * decode_rows + ([prefill_tokens] if prefill_tokens else [])
    for number, length in enumerate(lengths):
        stop = first + -(-length // block_size)
        start = CONTEXT if number < decode_rows else 0
        ids = tuple(range(1000 + start, 1000 + length))
        rows.append(RowInput(number, 0, ids, start, tuple(range(first, stop)), GREEDY, 0))
        first = stop
    return rows


if __name__ == "__main__":
    main()
