"""Decode steps of the engine's runner against the bytes that they must read, and prefill against matrix products.

A step's floor is to read every weight once, and the keys and values of every row: those bytes over the copy
bandwidth. Steps are timed by the host's clock, from the rows to the drawn tokens, so that whatever the host does
counts. Making the rows is the scheduler's work, and does not count here.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch

from gpu.engines import BLOCK_SIZE, open_runner
from gpu.figures import Figure, Target
from gpu.lab import Lab
from gpu.models import MODELS, floor_bytes, random_weights, tiny, weight_bytes_read
from orchestra.localengine import SamplingParams
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.step import PENDING, OverlappingRunner, RowInput

__all__ = ["run"]

_GREEDY = SamplingParams(temperature=0)
_TARGET = Target(least=0.6)
_SHARES = (("8B", 0.5), ("135M", 0.5), ("1B", 0.9))  # of the time that is left when a model's turn comes
_WARM_UP, _LEAST, _MOST = 3, 8, 40  # steps
_SECONDS = 0.5  # of steps, once there are the least
_OTHER_BYTES = 4 << 30  # activations of the largest step, graphs, and what libraries take


class _Steps:
    """Rows of one model: each has blocks of its own, for its context and what a measurement adds."""

    def __init__(self, spec: ModelSpec, rows: int, context: int) -> None:
        self.spec, self.rows, self.context = spec, rows, context
        self._rng = random.Random(3)
        each = self.tokens_each(context) // BLOCK_SIZE
        blocks = list(range(rows * each))
        self._rng.shuffle(blocks)
        self._tables = [tuple(blocks[row * each : (row + 1) * each]) for row in range(rows)]

    @staticmethod
    def tokens_each(context: int) -> int:
        """Tokens that a row has room for, in whole blocks."""
        return -(-(context + _WARM_UP + _MOST) // BLOCK_SIZE) * BLOCK_SIZE

    def prompts(self, first: int, stop: int) -> list[RowInput]:
        """The whole contexts of some rows."""
        return [self._row(row, self.context, 0) for row in range(first, stop)]

    def decode(self, count: int, nth: int, *, pending: bool) -> list[RowInput]:
        """The ``nth`` token after the context for the first ``count`` rows: any, or what the step before draws."""
        return [self._row(row, 1, self.context + nth, pending=pending) for row in range(count)]

    def _row(self, row: int, count: int, start: int, *, pending: bool = False) -> RowInput:
        ids = tuple(PENDING if pending else self._rng.randrange(self.spec.vocab_size) for _ in range(count))
        return RowInput(row, 0, ids, start, self._tables[row], _GREEDY, 0)


def run(lab: Lab) -> Iterator[Figure]:
    """Each model: the step that the target is about, with graphs and without, then other numbers of rows."""
    yield from lab.attempts([("log-probabilities against float32 on a CPU", partial(_against_cpu, lab))])
    for name, share in _SHARES[: 1 if lab.rehearsal else None]:
        stop = lab.time_left * (1 - share)  # what is to be left when this one ends
        yield from lab.attempts([(f"engine {name}", partial(_model, lab, name, stop))])


def _model(lab: Lab, name: str, stop: float) -> Iterator[Figure]:
    lab.measure_ceilings()
    spec = lab.model(name)
    rows, context, prompts = (4, 40, 2) if lab.rehearsal else (64, 1024, 8)
    sweep = (1,) if lab.rehearsal else (1, 256, 8, 32, 128, 2, 4, 16)
    most = _most_rows(lab, spec, context)
    if most < rows:
        free = lab.free_bytes / 1e9
        yield Figure(what=f"engine {name}", note=f"left out: {rows} x {context} do not fit into {free:.0f} GB")
        return
    most = min(most, max(rows, *sweep))
    steps = _Steps(spec, most, context)
    open_it = partial(
        open_runner, lab, spec, tokens=most * steps.tokens_each(context), rows=most, step_tokens=prompts * context
    )
    runner = open_it()
    try:
        yield _prefill(lab, f"engine prefill {name}, {prompts} x {context:,}", steps, runner, prompts, rows)
        # the rest is read as it is: zeros are bytes too
        what = f"engine decode {name}, {rows} x {context:,}"
        target = _TARGET if name == "8B" else None
        yield _decode(lab, what, steps, runner, rows, target)
        yield _decode(lab, f"{what}, a step ahead", steps, runner, rows, ahead=True)
        for count in sweep:
            if count <= most and lab.time_left > stop:
                what = f"engine decode {name}, {count} x {context:,}"
                yield _decode(lab, what, steps, runner, count)
    finally:
        runner.close()
        del runner
    if lab.time_left <= stop:
        yield Figure(what=f"engine decode {name}, without graphs", note="left out: no time was left")
        return
    runner = open_it(graphs=False)
    try:
        for count in (rows, 1):
            what = f"engine decode {name}, {count} x {context:,}, without graphs"
            yield _decode(lab, what, steps, runner, count)
    finally:
        runner.close()


def _prefill(lab: Lab, what: str, steps: _Steps, runner: OverlappingRunner, at_once: int, rows: int) -> Figure:
    """Compute the contexts of the first ``rows``, of ``at_once`` in a step."""
    took = []
    for first in range(0, rows, at_once):
        batch = steps.prompts(first, min(first + at_once, rows))
        began = time.perf_counter()
        runner.run(batch)
        took.append(time.perf_counter() - began)
    seconds = statistics.median(took)
    spec, tokens = steps.spec, at_once * steps.context
    # the head is computed for a prompt's last token alone
    matrices = weight_bytes_read(spec, 1) - spec.vocab_size * spec.hidden_size
    attention = 2 * spec.num_layers * spec.num_heads * spec.head_dim * steps.context
    rate = tokens * (2 * matrices + attention) / seconds
    return Figure(
        what=what,
        value=tokens / seconds,
        unit="tokens/s",
        share=rate / lab.matmul_rate,
        of="matmul",
        note=f"{1000 * seconds:.1f} ms a step",
    )


def _decode(
    lab: Lab,
    what: str,
    steps: _Steps,
    runner: OverlappingRunner,
    count: int,
    target: Target | None = None,
    *,
    ahead: bool = False,
) -> Figure:
    """Time steps of ``count`` rows; with ``ahead``, each is submitted before the one before it is collected."""
    most = 2 if lab.rehearsal else _MOST
    batches = [steps.decode(count, nth, pending=ahead and nth > 0) for nth in range(_WARM_UP + most)]
    ends: list[float] = []
    stop = time.perf_counter() + _SECONDS
    under_way: list[object] = []
    for batch in batches:
        under_way.append(runner.submit(batch))
        if len(under_way) > ahead:
            if len(outputs := runner.collect(under_way.pop(0))) != count:
                raise RuntimeError(f"{len(outputs)} outputs came of {count} rows")
            ends.append(time.perf_counter())
            if len(ends) > _WARM_UP + _LEAST and ends[-1] > stop:
                break
    for step in under_way:
        runner.collect(step)
    seconds = statistics.median(b - a for a, b in pairwise(ends[_WARM_UP - 1 :]))
    floor = floor_bytes(steps.spec, count, steps.context, lab.dtype.itemsize) / lab.copy_rate
    return Figure(
        what=what,
        value=count / seconds,
        unit="tokens/s",
        share=floor / seconds,
        of="floor",
        target=target,
        note=f"{1000 * seconds:.2f} ms a step, floor {1000 * floor:.2f}",
    )


def _most_rows(lab: Lab, spec: ModelSpec, context: int) -> int:
    """How many rows there is memory for beside the weights, some of which exist twice while they are packed."""
    if lab.rehearsal:
        return 4
    itemsize = lab.dtype.itemsize
    weights = weight_bytes_read(spec, itemsize) + spec.vocab_size * spec.hidden_size * itemsize
    free = 0.85 * lab.free_bytes - 1.1 * weights - _OTHER_BYTES
    return int(free // (_Steps.tokens_each(context) * spec.kv_values_per_token * itemsize))


def _against_cpu(lab: Lab) -> Iterator[Figure]:
    """The log-probabilities of a prompt's tokens by two layers: here, and on the CPU in float32."""
    from orchestra.localengine.execution.runner import Runner

    spec = tiny(MODELS["135M"]) if lab.rehearsal else replace(MODELS["135M"], num_layers=2)
    length = 20 if lab.rehearsal else 200
    weights = random_weights(spec, lab.dtype, lab.device)
    exact = {name: tensor.to("cpu", torch.float32) for name, tensor in weights.items()}
    rng = random.Random(5)
    ids = [rng.randrange(spec.vocab_size) for _ in range(length)]
    table = tuple(range(-(-length // BLOCK_SIZE)))
    # in two pieces, the second of which attends to what the first has written
    cut = length // 2
    rows = [
        RowInput(0, 0, tuple(ids[:cut]), 0, table, None, 0, targets=tuple(ids[1 : cut + 1])),
        RowInput(0, 0, tuple(ids[cut:-1]), cut, table, None, 0, targets=tuple(ids[cut + 1 :])),
    ]
    tokens = len(table) * BLOCK_SIZE
    ours = open_runner(lab, spec, tokens=tokens, rows=1, step_tokens=256, weights=weights)
    cpu = Runner(spec, exact, num_blocks=len(table), block_size=BLOCK_SIZE)
    told: list[Sequence[float]] = []
    for runner in (ours, cpu):
        try:
            told.append(
                [score.logprob for row in rows for output in runner.run([row]) for score in output.targets]
            )
        finally:
            runner.close()
    error = max(abs(a - b) for a, b in zip(*told, strict=True))
    note = f"of {len(told[0])} log-probabilities, the largest difference"
    yield Figure(
        what="log-probabilities against float32 on a CPU",
        value=error,
        unit="nats",
        target=Target(most=0.1),
        note=note,
    )
