"""The step on a GPU: launched without waiting, decode steps as recorded ones, and read when it is done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from orchestra.kernels.kv_pool import KvLayout
from orchestra.localengine.execution.row_rules import check_row, wanted_of
from orchestra.localengine.gpu.cuda import CudaDevice
from orchestra.localengine.gpu.device import Device, Event
from orchestra.localengine.gpu.eager import EagerSteps
from orchestra.localengine.gpu.graphs import DecodeGraphs, buckets
from orchestra.localengine.gpu.inputs import StepInputs
from orchestra.localengine.gpu.kernels import GpuKernels, triton_kernels
from orchestra.localengine.gpu.measuring import measure
from orchestra.localengine.gpu.pool import PagedPool
from orchestra.localengine.gpu.sampling import DeviceSampler, Drawn, Scored
from orchestra.localengine.gpu.sizing import DeviceMemory
from orchestra.localengine.gpu.staging import send
from orchestra.localengine.gpu.warming import warm_up
from orchestra.localengine.models.layout import EMBEDDING
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.models.transformer import Transformer
from orchestra.localengine.step import PENDING, RowInput, RowOutput, StepAbandoned, StepOutOfMemory

__all__ = ["GpuRunner", "SubmittedStep"]

_log = logging.getLogger(__name__)

_GIVEN_UP = 20  # one block of so many, where memory runs out


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedStep:
    """A step under way: what of it comes back to the host, and when it has."""

    rows: Sequence[RowInput]
    sampled: Sequence[int]  # which of the rows, in the order of what was drawn
    drawn: Drawn | None
    scored: dict[int, Scored]  # by row: those with targets
    done: Event


class GpuRunner:
    """Runs steps of one model on a GPU, and owns its weights and its paged KV pool.

    ``weights`` are taken over (see :class:`~orchestra.localengine.models.transformer.Transformer`); they are on
    the device. A step has at most ``step_tokens`` tokens, and of up to ``max_num_seqs`` rows a token is drawn.
    Every kernel is launched once before this returns, so that none compiles while requests wait.
    ``num_blocks`` None has the largest step run, to see what it takes, and fills what is left with blocks, or
    ``kv_bytes`` of it; ``memory`` tells what was found. ``kv_dtype`` is what keys and values are kept in; None
    is that of the weights. ``graphs`` False launches decode steps one kernel at a time, too. ``device`` and
    ``kernels`` are the weights' GPU and Triton's, unless others are given.

    Implements :class:`~orchestra.localengine.step.OverlappingRunner`. Not thread-safe: one thread at a time.
    Raises ValueError where not one block fits.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: dict[str, Tensor],
        *,
        block_size: int,
        step_tokens: int,
        max_num_seqs: int,
        num_blocks: int | None = None,
        kv_bytes: int | None = None,
        kv_dtype: torch.dtype | None = None,
        graphs: bool = True,
        device: Device | None = None,
        kernels: GpuKernels | None = None,
    ) -> None:
        if min(block_size, step_tokens, max_num_seqs) < 1 or (num_blocks is not None and num_blocks < 1):
            raise ValueError("block_size, step_tokens, max_num_seqs and num_blocks must be at least 1")
        self.spec = spec
        self.memory: DeviceMemory | None = None
        self._block_size = block_size
        self._step_tokens = step_tokens
        embedding = weights.get(EMBEDDING)
        at = torch.device("cuda") if embedding is None else embedding.device
        self._device = device or CudaDevice(at)
        with self._device.active():
            dtype = torch.bfloat16 if embedding is None else embedding.dtype
            self._kernels = kernels or triton_kernels(dtype, self._device.torch_device)
            self._sampler = DeviceSampler(self._device, self._kernels.sampling)
            self._layout = KvLayout(
                kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                block_size=block_size,
                dtype=kv_dtype or self._kernels.operations.dtype,
            )
            self._model: Transformer | None = Transformer(spec, weights, self._kernels.operations)
            # what was fused is free now, and may be of another stream, which does not wait for ours
            self._device.synchronize()
            # what the last step drew: a step draws for at most as many rows as it has tokens
            self._kept = torch.zeros(step_tokens, dtype=torch.int64, device=self._device.torch_device)
            self._places: dict[int, int] = {}  # where in that each request's token is
            self._eager: EagerSteps | None = EagerSteps(self._device, self._kernels, self._model, self._kept)
            self._sizes = buckets(min(max_num_seqs, step_tokens)) if graphs else []
            warm_up(
                self._device,
                self._eager,
                self._sampler,
                spec,
                self._model.windows,
                self._layout,
                step_tokens=step_tokens,
                max_num_seqs=max_num_seqs,
            )
            if num_blocks is None:
                self.memory = measure(
                    self._device,
                    self._eager,
                    self._sampler,
                    spec,
                    self._layout,
                    step_tokens=step_tokens,
                    max_num_seqs=max_num_seqs,
                    sizes=self._sizes,
                )
                num_blocks = self.memory.blocks(self.kv_bytes_per_block, kv_bytes)
            self._num_blocks = self._left = num_blocks
            self._pool: PagedPool | None = PagedPool(self._layout, spec.num_layers, num_blocks, self._device)
            self._graphs = self._record(self._model, self._pool)

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def kv_bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        return self._layout.bytes_per_block * self.spec.num_layers

    def run(self, rows: Sequence[RowInput], abandon: Callable[[], bool] | None = None) -> list[RowOutput]:
        """Compute one step; one output for each row with ``sampling`` or ``targets``, in the order of ``rows``.

        Raises ValueError where a row breaks the rules of :class:`RowInput`, before anything is written, and
        StepOutOfMemory where the device has too little memory. ``abandon`` is asked between layers, a few of which
        are under way when it is; where it says yes, StepAbandoned is raised. A recorded step asks once.
        """
        return self.collect(self.submit(rows, abandon))

    def submit(self, rows: Sequence[RowInput], abandon: Callable[[], bool] | None = None) -> SubmittedStep:
        """Start a step, and return as soon as all of it is launched. Raises what `run` raises.

        What was drawn for a request in the step before may stand as PENDING for the one token of its row.
        """
        with self._device.active():
            try:
                return self._submit(rows, abandon)
            except RuntimeError as error:
                if not self._device.is_out_of_memory(error):
                    raise
                told = str(error).partition("\n")[0]
            # only here is the error gone, and with it the frames that hold what the step had allocated so far
            self._device.release_cache()
            tokens = sum(len(row.token_ids) for row in rows)
            raise StepOutOfMemory(
                f"the GPU's memory is too small for a step of {tokens} tokens: {told}",
                blocks=max(1, self._left // _GIVEN_UP),
                give_up=self.give_up,
            )

    def collect(self, step: object) -> list[RowOutput]:
        """Wait for a step, and return its outputs."""
        if not isinstance(step, SubmittedStep):
            raise TypeError(f"a step that was submitted can be collected, not {step!r}")
        step.done.wait()
        drawn = dict(zip(step.sampled, step.drawn.read(), strict=True)) if step.drawn is not None else {}
        outputs = []
        for i, row in enumerate(step.rows):
            if row.sampling is not None or row.targets:
                token_id, told = drawn.get(i, (None, None))
                targets = tuple(step.scored[i].read(row.targets)) if i in step.scored else ()
                outputs.append(RowOutput(row.request_id, row.epoch, token_id, told, targets))
        return outputs

    def logits(self, rows: Sequence[RowInput]) -> list[Tensor]:
        """Compute one step and return the logits of every token of each row: float32 [len(token_ids), vocab].

        Keys and values are written as by `run`, and the same errors are raised.
        """
        with self._device.active():
            logits, spans, _ = self._forward(rows, [range(len(row.token_ids)) for row in rows], None)
            host = logits.cpu()  # which waits
            return [host[span.start : span.stop] for span in spans]

    def give_up(self, blocks: Collection[int]) -> None:
        """Free the memory of ``blocks`` for good: no row may have them any more. Takes seconds."""
        if self._model is None or self._pool is None:
            raise RuntimeError("the runner is closed")
        with self._device.active():
            self._device.synchronize()
            self._graphs = None  # they read the pool where it was
            self._device.release_cache()
            self._pool.give_up(blocks)
            self._left -= len(set(blocks))
            self._graphs = self._record(self._model, self._pool)

    def close(self) -> None:
        """Release weights and pool. Closing twice is harmless."""
        if self._model is None:
            return
        with self._device.active():
            try:
                self._device.synchronize()
            finally:  # a device that has failed says so at every turn
                self._model = self._pool = self._graphs = self._eager = None
                self._kept = torch.empty(0)
            self._device.release_cache()

    def _submit(self, rows: Sequence[RowInput], abandon: Callable[[], bool] | None) -> SubmittedStep:
        logits, spans, order = self._forward(rows, [wanted_of(row) for row in rows], abandon)
        # what is asked of the prompt first: drawing may write to the logits
        scored = {
            i: self._sampler.score(logits[spans[i].start :][: len(row.targets)], row.targets, row.num_top)
            for i, row in enumerate(rows)
            if row.targets
        }
        sampled = [i for i in order if rows[i].sampling is not None]
        drawn = None
        if sampled:
            last = [spans[i].stop - 1 for i in sampled]
            if last == list(range(len(last))):
                own = logits[: len(last)]
            else:
                own = logits.index_select(0, send(self._device, {"last": numpy.array(last, numpy.int64)})["last"])
            drawn = self._sampler.draw(own, [rows[i] for i in sampled])
            self._kept[: len(sampled)] = drawn.on_device  # last of all: a step that fails has drawn nothing
        self._places = {rows[i].request_id: place for place, i in enumerate(sampled)}
        return SubmittedStep(
            rows=tuple(rows), sampled=sampled, drawn=drawn, scored=scored, done=self._device.event()
        )

    def _forward(
        self, rows: Sequence[RowInput], wanted: Sequence[range], abandon: Callable[[], bool] | None
    ) -> tuple[Tensor, list[range], Sequence[int]]:
        """Launch a step: logits, which of them are each row's wanted ones, and the rows as they are laid out."""
        if self._eager is None or self._pool is None:
            raise RuntimeError("the runner is closed")
        tokens = sum(len(row.token_ids) for row in rows)
        if tokens > self._step_tokens:
            raise ValueError(f"a step of {tokens} tokens, and step_tokens is {self._step_tokens}")
        if not rows:
            return torch.empty(0, self.spec.vocab_size), [], ()
        for row in rows:
            check_row(row, self.spec, self._block_size, least_token=PENDING)
        inputs = StepInputs.of(
            rows,
            wanted,
            self._pool.places(rows),
            kv_heads=self.spec.num_kv_heads,
            block_size=self._block_size,
            drawn=self._places,
        )
        spans = [range(0)] * len(rows)
        first = 0
        if self._graphs is not None and inputs.num_decode == len(rows) <= self._graphs.most_rows:
            if abandon is not None and abandon():
                raise StepAbandoned
            for place, i in enumerate(inputs.order):
                spans[i] = range(place, place + 1)
            return self._graphs.run(inputs), spans, inputs.order
        for i in inputs.order:
            spans[i] = range(first, first + len(wanted[i]))
            first += len(wanted[i])
        return self._eager.run(inputs, self._pool.layers, abandon), spans, inputs.order

    def _record(self, model: Transformer, pool: PagedPool) -> DecodeGraphs | None:
        if not self._sizes:
            return None
        blocks = min(-(-self.spec.max_position // self._block_size), self._num_blocks)
        try:
            return DecodeGraphs(self._device, self._kernels, model, pool.layers, self._kept, self._sizes, blocks)
        except RuntimeError as error:
            if not self._device.is_out_of_memory(error):
                raise
            _log.warning("too little GPU memory to record decode steps: they are launched kernel by kernel")
            return None
