"""How fast this machine's CPU does what a step consists of: reading matrices, multiplying, attending, the rest."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.models.capacity import kv_bytes_per_token, step_weight_bytes
from orchestra.localengine.models.layout import layer_shapes, tensor_shapes
from orchestra.localengine.models.operations import cpu_operations
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.precision import Precision
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.step import RowInput

__all__ = ["Speeds", "measure_speeds"]

_MATRIX_BYTES = 512 << 20  # of all matrices that are read: more than the caches of large servers hold
_MANY_VALUES = 64 << 20  # of those that many rows are multiplied with: computing bounds it, and takes long
_MANY, _SOME = 256, 16  # rows: where products are bound by computing, and between
_WORDS = 64  # of a model's part whose output projection is left out
_PASSES = 7
_REFINEMENTS = 8
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
    products with many; a product and its sum are two. ``overlap``: how far a product computes while it reads, at
    most 1; below 0, where with few rows it computes slower than with many, by that share of its reading.
    ``kv_bandwidth``: bytes of keys and values that decoding rows attend to in a second. ``step_seconds``: what a
    step takes beside all these, and ``row_seconds`` each row of it, drawing its token included.
    """

    bandwidth: float
    flops: float
    overlap: float
    kv_bandwidth: float
    step_seconds: float
    row_seconds: float
    threads: int


def measure_speeds(spec: ModelSpec, precision: Precision = "float32") -> Speeds:
    """Measure with random weights of the model's widths, by the engine's own steps; takes some seconds.

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
    """Bandwidth, rate and overlap of matrix products.

    Those of few rows are measured within steps, as what these take beyond steps that have next to nothing to
    multiply: between two products of a step torch's threads may fall asleep, and the caches hold other things.
    """
    part = _part(spec, _MATRIX_BYTES // (1 if precision == "int8" else 4))
    values = part.num_layers * _layer_values(part)
    rate = _rate(part, precision)
    wide, narrow = _Steps(part, precision), _Steps(_narrow(part), precision)
    try:
        one, some, *rest = _typical(
            [partial(steps.decode, rows, _SHORT) for steps in (wide, narrow) for rows in (1, _SOME)]
        )
    finally:
        wide.close()
        narrow.close()
    one, some = (max(whole - other, 1e-9) for whole, other in zip((one, some), rest, strict=True))
    computed = 2 * values * _SOME / rate  # the part of `some` that is computing
    reading, overlap = one, 1.0
    for _ in range(_REFINEMENTS):  # a single row is computed, too
        overlap = min(1.0, max(-1.0, 1 - (some - max(reading, computed)) / min(reading, computed)))
        reading = max(one - (1 - overlap) * computed / _SOME, one / 2)
    every_value = spec.num_layers * _layer_values(spec) + spec.vocab_size * spec.hidden_size
    read = step_weight_bytes(spec, precision) * values / every_value  # in int8 they are padded
    return read / reading, rate, overlap


def _rate(part: ModelSpec, precision: Precision) -> float:
    """Operations a second in products with many rows."""
    operations = cpu_operations(precision)
    queries, keys = part.num_heads * part.head_dim, part.num_kv_heads * part.head_dim
    hidden, width = part.hidden_size, part.intermediate_size
    # as a layer multiplies them: joined where the same rows go through several
    shapes = [(queries + 2 * keys, hidden), (hidden, queries), (2 * width, hidden), (hidden, width)]
    layers = max(1, min(part.num_layers, _MANY_VALUES // _layer_values(part)))
    with torch.inference_mode():
        drawn = [torch.randn(shape) for shape in shapes]  # once: drawing takes long
        packed = [operations.pack(weight.clone()) for _ in range(layers) for weight in drawn]
        inputs = [torch.randn(_MANY, columns) for _, columns in shapes]

        def multiply() -> None:
            for number, matrix in enumerate(packed):
                operations.linear(inputs[number % len(shapes)], matrix)

        (seconds,) = _typical([multiply])
    return 2 * layers * _layer_values(part) * _MANY / seconds


def _rest(spec: ModelSpec, precision: Precision) -> tuple[float, float, float]:
    """Bandwidth of attention, and the seconds of a step and of a row: from a model that is very narrow."""
    kv_bytes = kv_bytes_per_token(spec, precision) // spec.num_layers  # of a layer
    layers = max(1, min(spec.num_layers, _KV_BYTES // (kv_bytes * _SOME * (_LONG + 1))))
    steps = _Steps(_narrow(replace(spec, num_layers=layers)), precision)
    try:
        cases = ((1, _SHORT), (_SOME, _SHORT), (_SOME, _LONG))
        one, some, far = _typical([partial(steps.decode, rows, context) for rows, context in cases])
    finally:
        steps.close()
    per_token = max(far - some, 1e-9) / (_SOME * (_LONG - _SHORT))  # of a row's context
    per_row = max(0.0, (some - one) / (_SOME - 1) - per_token * (_SHORT + 1))
    per_step = max(0.0, one - per_row - per_token * (_SHORT + 1))
    share = spec.num_layers / layers
    return layers * kv_bytes / per_token, per_step * share, per_row * share


class _Steps:
    """Steps of a model of random weights."""

    def __init__(self, spec: ModelSpec, precision: Precision) -> None:
        spec = replace(spec, max_position=_LONG + 1, sliding_window=None, sliding_layers=frozenset())
        shapes = tensor_shapes(spec)
        drawn = {shape: torch.randn(shape) for shape in set(shapes.values())}  # once: drawing takes long
        weights = {name: drawn[shape].clone() for name, shape in shapes.items()}
        self._blocks = -(-(_LONG + 1) // _BLOCK)
        self._runner = Runner(
            spec, weights, num_blocks=_SOME * self._blocks, block_size=_BLOCK, precision=precision
        )

    def decode(self, rows: int, context: int) -> None:
        """Run one that draws a token for each of so many rows."""
        tables = [range(row * self._blocks, (row + 1) * self._blocks) for row in range(rows)]
        self._runner.run([RowInput(row, 0, [1], context, table, _GREEDY, 0) for row, table in enumerate(tables)])

    def close(self) -> None:
        self._runner.close()


def _part(spec: ModelSpec, most: int) -> ModelSpec:
    """Of the model as many layers as have ``most`` values at most, with few words; narrower if one has more."""
    heads, scale = spec.num_heads // spec.num_kv_heads, 1
    part = replace(spec, vocab_size=_WORDS, tie_embeddings=True)
    while _layer_values(part) > most:
        scale *= 2
        keys = max(1, spec.num_kv_heads // scale)
        part = replace(
            part,
            hidden_size=spec.hidden_size // scale,
            intermediate_size=spec.intermediate_size // scale,
            num_heads=keys * heads,
            num_kv_heads=keys,
        )
    return replace(part, num_layers=max(1, min(spec.num_layers, most // _layer_values(part))))


def _narrow(spec: ModelSpec) -> ModelSpec:
    """The same with next to nothing to multiply: attention and the number of operations stay."""
    return replace(spec, hidden_size=_THIN, intermediate_size=_THIN)


def _layer_values(spec: ModelSpec) -> int:
    return sum(math.prod(shape) for shape in layer_shapes(spec).values() if len(shape) == 2)


def _typical(passes: Sequence[Callable[[], None]]) -> list[float]:
    """What each takes here, in seconds, tried in turns.

    That is the least of several times, as whatever else the machine does only adds to them, and differences
    between medians would mostly be that. What it adds to all of them is told by all together.
    """
    for run in passes:
        run()
    times: list[list[float]] = [[] for _ in passes]
    for _ in range(_PASSES):
        for run, taken in zip(passes, times, strict=True):
            began = time.perf_counter()
            run()
            taken.append(time.perf_counter() - began)
    least = [min(taken) for taken in times]
    longer = sum(map(statistics.median, times)) / sum(least)
    return [seconds * longer for seconds in least]
