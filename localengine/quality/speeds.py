"""How fast this machine's CPU does what a step consists of: reading matrices, multiplying, attending, the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.models.capacity import kv_bytes_per_token, step_weight_bytes
from orchestra.localengine.models.layout import tensor_shapes
from orchestra.localengine.models.operations import cpu_operations
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.precision import Precision
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.step import RowInput

__all__ = ["Speeds", "measure_speeds"]

_MATRIX_BYTES = 512 << 20  # of all matrices that are read: more than the caches of large servers hold
_MANY_VALUES = 64 << 20  # of those that many rows are multiplied with: computing bounds it, and takes long
_MANY, _SOME = 256, 16  # rows: where products are bound by computing, and between
_PASSES = 7
_BLOCK = 16
_KV_BYTES = 192 << 20  # of all keys and values that are tried
# Tokens before a row's own. Attention pads lengths, to multiples of 32 up to 256 and of 64 up to 512; these are
# padded by as much as the average is.
_SHORT, _LONG = 47, 287
_THIN = 32  # the width of a model that has next to nothing to multiply
_GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What was measured, with ``threads`` threads of torch.

    ``bandwidth``: bytes of packed matrices a second, in products with one row. ``flops``: operations a second in
    products with many; a product and its sum are two. ``overlap``: how far a product computes while it reads, from
    0 to 1. ``kv_bandwidth``: bytes of keys and values that decoding rows attend to in a second. ``step_seconds``:
    what a step takes beside all these, and ``row_seconds`` each row of it, drawing its token included.
    """

    bandwidth: float
    flops: float
    overlap: float
    kv_bandwidth: float
    step_seconds: float
    row_seconds: float
    threads: int


def measure_speeds(spec: ModelSpec, precision: Precision = "float32") -> Speeds:
    """Measure with random weights of the model's widths, by the engine's own operations; takes some seconds.

    Matrices stand for all of the model's: some of its layers', narrower ones where a layer alone is very large.
    """
    bandwidth, flops, overlap = _products(spec, precision)
    kv_bandwidth, step_seconds, row_seconds = _rest(spec, precision)
    return Speeds(
        bandwidth=bandwidth,
        flops=flops,
        overlap=overlap,
        kv_bandwidth=kv_bandwidth,
        step_seconds=step_seconds,
        row_seconds=row_seconds,
        threads=torch.get_num_threads(),
    )


def _products(spec: ModelSpec, precision: Precision) -> tuple[float, float, float]:
    """Bandwidth, rate and overlap of matrix products."""
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, width = spec.hidden_size, spec.intermediate_size
    # as a layer multiplies them: joined where the same rows go through several
    shapes = [(queries + 2 * keys, hidden), (hidden, queries), (2 * width, hidden), (hidden, width)]
    values = values_of_layer = sum(rows * columns for rows, columns in shapes)
    most = _MATRIX_BYTES // (1 if precision == "int8" else 4)
    while values > most:
        shapes = [(rows // 2, columns // 2) for rows, columns in shapes]
        values = sum(rows * columns for rows, columns in shapes)
    layers = max(1, min(spec.num_layers, most // values))
    some_layers = max(1, min(layers, _MANY_VALUES // values))
    operations = cpu_operations(precision)
    with torch.inference_mode():
        drawn = [torch.randn(shape) for shape in shapes]  # once: drawing takes long
        packed = [operations.pack(weight.clone()) for _ in range(layers) for weight in drawn]
        thin, short = operations.pack(torch.randn(_THIN, _THIN)), torch.randn(1, _THIN)
        inputs = {rows: [torch.randn(rows, columns) for _, columns in shapes] for rows in (1, _SOME, _MANY)}

        def multiply(rows: int) -> None:
            count = some_layers if rows == _MANY else layers
            for number, matrix in enumerate(packed[: count * len(shapes)]):
                operations.linear(inputs[rows][number % len(shapes)], matrix)

        def call() -> None:
            for _ in packed:
                operations.linear(short, thin)

        *taken, calls = _fastest([*(partial(multiply, rows) for rows in inputs), call])
    # what the calls take counts among the rest of a step, which has as many
    taken[-1] *= layers / some_layers
    one, some, many = (max(seconds - calls, 1e-9) for seconds in taken)
    tried = layers * values
    whole = spec.num_layers * values_of_layer + spec.vocab_size * spec.hidden_size
    read = step_weight_bytes(spec, precision) * tried / whole  # in int8 they are padded
    computed = many * _SOME / _MANY  # the part of `some` that is computing
    overlap = 1 - (some - max(one, computed)) / min(one, computed)
    return read / one, 2 * tried * _MANY / many, min(1.0, max(0.0, overlap))


def _rest(spec: ModelSpec, precision: Precision) -> tuple[float, float, float]:
    """Bandwidth of attention, and the seconds of a step and of a row: from a model that is very narrow."""
    kv_bytes = kv_bytes_per_token(spec, precision) // spec.num_layers  # of a layer
    layers = max(1, min(spec.num_layers, _KV_BYTES // (kv_bytes * _SOME * (_LONG + 1))))
    narrow = replace(
        spec,
        hidden_size=_THIN,
        intermediate_size=_THIN,
        num_layers=layers,
        max_position=_LONG + 1,
        sliding_window=None,
        sliding_layers=frozenset(),
    )
    weights = {name: torch.randn(shape) for name, shape in tensor_shapes(narrow).items()}
    blocks = -(-(_LONG + 1) // _BLOCK)
    runner = Runner(narrow, weights, num_blocks=_SOME * blocks, block_size=_BLOCK, precision=precision)
    try:

        def decode(rows: int, context: int) -> None:
            runner.run(
                [
                    RowInput(i, 0, [1], context, range(i * blocks, (i + 1) * blocks), _GREEDY, 0)
                    for i in range(rows)
                ]
            )

        cases = ((1, _SHORT), (_SOME, _SHORT), (_SOME, _LONG))
        one, some, far = _fastest([partial(decode, rows, context) for rows, context in cases])
    finally:
        runner.close()
    per_token = max(far - some, 1e-9) / (_SOME * (_LONG - _SHORT))  # of a row's context
    per_row = max(0.0, (some - one) / (_SOME - 1) - per_token * (_SHORT + 1))
    per_step = max(0.0, one - per_row - per_token * (_SHORT + 1))
    share = spec.num_layers / layers
    return layers * kv_bytes / per_token, per_step * share, per_row * share


def _fastest(passes: Sequence[Callable[[], None]]) -> list[float]:
    """The least seconds of each, in turns: whatever else the machine does only adds to them."""
    for run in passes:
        run()
    times: list[list[float]] = [[] for _ in passes]
    for _ in range(_PASSES):
        for run, taken in zip(passes, times, strict=True):
            began = time.perf_counter()
            run()
            taken.append(time.perf_counter() - began)
    return [min(taken) for taken in times]
