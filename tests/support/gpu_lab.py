"""A device that is none: tensors on it say that they are on a GPU, and what a GPU would not do raises here.

Its tensors wrap others in this machine's memory. As on a GPU, they do not mix with those of the host; what comes
back to the host is there only when an event was waited for; nothing but page-locked memory goes there and back
without waiting; a recorded step launches the same again, on the same memory. Kernels are plain functions here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from orchestra.kernels import sampling
from orchestra.kernels.activation import gelu_tanh_mul, silu_mul
from orchestra.kernels.kv_pool import FLOAT8, head_dim_of, unpacked, write_slots
from orchestra.kernels.norm import add_rms_norm, rms_norm
from orchestra.kernels.rope_kv import rope_kv
from orchestra.localengine.gpu.kernels import GpuKernels
from orchestra.localengine.models.layout import tensor_shapes
from orchestra.localengine.models.operations import Operations
from orchestra.localengine.models.spec import ModelSpec

GPU = torch.device("meta")  # the one that torch has on every machine beside the CPU
_WAITING = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select"}
_GARBAGE = 0x7F


class OnDevice(Tensor):
    """A tensor on the device. ``held`` is where its numbers are."""

    held: Tensor

    @staticmethod
    def __new__(cls, real: Tensor) -> OnDevice:
        made = Tensor._make_wrapper_subclass(
            cls,
            real.shape,
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=GPU,
        )
        made.held = real
        return made

    def __repr__(self) -> str:
        return f"OnDevice({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on a tensor of the device, while that is not active")


class _Mode(TorchDispatchMode):
    """Sends each operation to the device or the host, whichever its tensors are on."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self._device = device

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first use imports the compiler, for seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._device.dispatch(func, args, kwargs or {})


class _FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._arrivals = device.under_way
        device.under_way = []
        device.events += 1

    def wait(self) -> None:
        """What had been sent before the event is there; of later things nothing is known."""
        for place, value in self._arrivals:
            with torch._C._DisableTorchDispatch(), torch.inference_mode():
                place.copy_(value)
        self._arrivals = []
        self._device.waits += 1


class FakeDevice:
    """Implements `orchestra.localengine.gpu.device.Device`.

    ``fails_at``: the launch (counted by ``launches``) that finds too little memory. ``replayed`` tells which of
    the captures, counted from 0, each replay was of. ``may_wait``: whether reading from the device without an
    event is allowed now.
    """

    def __init__(self, free: int = 1 << 30) -> None:
        self.free = free
        self.launches = self.events = self.waits = self.released = self.captures = 0
        self.fails_at: int | None = None
        self.replayed: list[int] = []
        self.may_wait = True
        self.under_way: list[tuple[Tensor, Tensor]] = []
        self._pinned: dict[int, Tensor] = {}
        self._recording: list[Any] | None = None
        self._made: set[int] = set()
        self._mode = _Mode(self)

    @property
    def torch_device(self) -> torch.device:
        return GPU

    @contextmanager
    def active(self) -> Iterator[None]:
        with torch.inference_mode(), self._mode:
            yield

    @contextmanager
    def never_waiting(self) -> Iterator[None]:
        self.may_wait = False
        try:
            yield
        finally:
            self.may_wait = True

    def pinned(self, size: int) -> Tensor:
        with torch._C._DisableTorchDispatch():
            made = torch.full((size,), _GARBAGE, dtype=torch.uint8)
        self._pinned[made.untyped_storage().data_ptr()] = made
        return made

    def event(self) -> _FakeEvent:
        return _FakeEvent(self)

    def synchronize(self) -> None:
        _FakeEvent(self).wait()

    def graph_pool(self) -> object:
        return object()

    def capture(self, compute: Callable[[], None], pool: object) -> Callable[[], None]:
        recorded = self._record(compute)
        number = self.captures
        self.captures += 1

        def replay() -> None:
            launched = self._record(compute)
            assert launched == recorded, "a recorded step launches nothing else, and nowhere else"
            self.replayed.append(number)

        return replay

    def memory(self) -> tuple[int, int]:
        return self.free, 2 * self.free

    def peak(self, compute: Callable[[], None]) -> int:
        before = self.launches
        compute()
        return 1000 * (self.launches - before)

    def release_cache(self) -> None:
        self.released += 1

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, torch.OutOfMemoryError)

    def launch(self, name: str, tensors: Sequence[Tensor], numbers: Any) -> None:
        """Count a launch, and record it by what it is given and where that lies."""
        self.launches += 1
        if self.fails_at is not None and self.launches >= self.fails_at:
            self.fails_at = None
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nof more")
        if self._recording is not None:
            places = [_place(tensor) for tensor in tensors]
            given = [None if place in self._made else place for place in places]
            shapes = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]
            self._recording.append((name, given, shapes, repr(numbers)))

    def made(self, done: Any, *given: Any) -> Any:
        """What a launch has returned, on the device. A recorded step has memory of its own for what is new."""
        places = {_place(x) for x in _leaves(given) if isinstance(x, OnDevice)}

        def wrapped(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            result = OnDevice(x)
            if self._recording is not None and _place(result) not in places:
                self._made.add(_place(result))
            return result

        return _mapped(wrapped, done)

    def dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        flat = list(_leaves((args, kwargs)))
        there = [x for x in flat if isinstance(x, OnDevice)]
        here = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, OnDevice)]
        target = next((x for x in flat if isinstance(x, torch.device)), None)
        to_device = target is not None and target.type == GPU.type
        if not there and not to_device:
            return func(*args, **kwargs)
        assert not (name in _WAITING and not self.may_wait), f"{name} waits for the device"
        if name == "copy_" and here:
            place, source = args[:2]
            if isinstance(source, OnDevice):
                return self._leaves(place, source)
            self._arrives(source)
        elif name in ("to", "_to_copy") and target is not None:
            if not to_device:
                assert self.may_wait, "a copy to memory that is not page-locked waits for the device"
            elif here:
                self._arrives(here[0])
        else:
            strange = [x.shape for x in here if x.dim()]
            assert not strange, f"{name} of tensors on the device and the host: {strange}"
        self.launch(name, there, [x for x in flat if not isinstance(x, Tensor)])
        cpu = torch.device("cpu")
        on_cpu, how = _mapped(lambda x: cpu if isinstance(x, torch.device) else _held(x), (args, kwargs))
        done = func(*on_cpu, **how)
        if target is not None and not to_device:
            return done.clone()  # what has come to the host is not what is on the device, and stays as it is
        return self.made(done, args, kwargs)

    def _arrives(self, source: Tensor) -> None:
        assert self._recording is None, "nothing comes from the host while a step is recorded"
        assert source.untyped_storage().data_ptr() in self._pinned or self.may_wait, (
            "a copy from memory that is not page-locked waits"
        )

    def _leaves(self, place: Tensor, source: OnDevice) -> Tensor:
        assert self._recording is None, "nothing goes to the host while a step is recorded"
        assert place.untyped_storage().data_ptr() in self._pinned, "what comes back goes to page-locked memory"
        self.under_way.append((place, source.held.clone()))
        return place

    def _record(self, compute: Callable[[], None]) -> list[Any]:
        self._recording, self._made = [], set()
        try:
            compute()
            return self._recording
        finally:
            self._recording = None


def _place(tensor: Tensor) -> int:
    return tensor.held.untyped_storage().data_ptr() if isinstance(tensor, OnDevice) else 0


def _held(x: Any) -> Any:
    return x.held if isinstance(x, OnDevice) else x


def _leaves(x: Any) -> Iterator[Any]:
    """All that tuples, lists and dicts hold. torch's own walk takes several times as long as what it leads to."""
    if isinstance(x, tuple | list | dict):
        for one in x.values() if isinstance(x, dict) else x:
            yield from _leaves(one)
    else:
        yield x


def _mapped(change: Callable[[Any], Any], x: Any) -> Any:
    if isinstance(x, dict):
        return {name: _mapped(change, one) for name, one in x.items()}
    if isinstance(x, tuple | list):
        return type(x)([_mapped(change, one) for one in x])
    return change(x)


class _Plan:
    """Rows of one query each: the blocks of each, how many positions it sees, and the window."""

    def __init__(self, device: FakeDevice, rows: int, blocks: int, window: int | None) -> None:
        self.tables = torch.zeros(rows, blocks, dtype=torch.int64, device=GPU)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=GPU)
        self.window = window
        self.plan = self
        self._device = device

    def fill(self, block_tables: Sequence[Any], lengths: Sequence[int]) -> None:
        assert len(lengths) <= len(self.lengths)
        with torch._C._DisableTorchDispatch():
            self.lengths.held.zero_()
            self.lengths.held[: len(lengths)] = torch.tensor(lengths)
            self.tables.held[: len(lengths)] = 10**6  # beyond its blocks a row has none
            for own, table in zip(self.tables.held, block_tables, strict=False):
                own[: len(table)] = torch.as_tensor(table)


def fake_kernels(device: FakeDevice) -> GpuKernels:
    """Float32 kernels for ``device``, of the CPU's own functions but for attention, which is plain here."""

    def kernel(function: Callable[..., Any], *, host: frozenset[str] = frozenset()) -> Callable[..., Any]:
        def launched(*args: Any, **kwargs: Any) -> Any:
            flat = list(_leaves((args, {n: v for n, v in kwargs.items() if n not in host})))
            tensors = [x for x in flat if isinstance(x, Tensor)]
            assert all(isinstance(x, OnDevice) for x in tensors), f"{function.__name__} is given the host's"
            device.launch(function.__name__, tensors, [x for x in flat if isinstance(x, int | float)])
            with torch._C._DisableTorchDispatch():
                done = function(*_mapped(_held, args), **_mapped(_held, kwargs))
                return device.made(done, args, kwargs)

        return launched

    def attend(q: Tensor, pool: Tensor, plan: Any, scale: float, *, softcap: float | None = None) -> Tensor:
        tables, lengths = plan.tables.held, plan.lengths.held
        (kv_heads, size), head_dim = pool.shape[1:3], q.shape[2]
        position = torch.arange(tables.shape[1] * size)
        seen = position < lengths[:, None]
        if plan.window is not None:
            seen &= position >= lengths[:, None] - plan.window
        block = torch.where(seen, tables[:, position // size], 0)
        if pool.dtype == FLOAT8:
            used, block = torch.unique(block, return_inverse=True)
            pool = unpacked(pool.view(torch.uint8)[used].view(FLOAT8))
        both = pool[block, :, position % size]  # [rows, positions, kv_heads, 2 * head_dim]
        both = torch.where(seen[:, :, None, None], both, 0.0)
        by_group = q.unflatten(1, (kv_heads, -1))
        scores = torch.einsum("rkgd,rpkd->rkgp", by_group, both[..., :head_dim]) * scale
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        weights = torch.softmax(scores.masked_fill(~seen[:, None, None], -math.inf), dim=-1)
        return torch.einsum("rkgp,rpkd->rkgd", weights, both[..., head_dim:]).flatten(1, 2)

    def rope(qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, pool: Tensor, **norm: Any) -> Tensor:
        tokens, kv_heads = slots.shape
        head_dim = head_dim_of(pool)
        own = torch.zeros(1, kv_heads, tokens, 2 * head_dim)
        queries = rope_kv(
            qkv, cos, sin, torch.arange(kv_heads) * tokens + torch.arange(tokens)[:, None], own, **norm
        )
        written = slots.flatten() >= 0  # -1 writes nothing
        both = own[0].transpose(0, 1).flatten(0, 1)[written]
        write_slots(pool, slots.flatten()[written], both[:, :head_dim], both[:, head_dim:])
        return queries

    def sample(logits: Tensor, temperature: Tensor, **how: Tensor) -> Tensor:
        heat = torch.where(temperature > 0, temperature, 1.0)
        return torch.where(temperature > 0, sampling.sample(logits, heat, **how), logits.argmax(-1))

    def plan(tables: Sequence[Any], lengths: Sequence[int], pool: Tensor, *, window: int | None = None) -> _Plan:
        made = _Plan(device, len(tables), max(map(len, tables)), window)
        made.fill(tables, lengths)
        return made

    def plan_runs(
        tables: Sequence[Any],
        starts: Sequence[int],
        counts: Sequence[int],
        pool: Tensor,
        heads: int,
        *,
        window: int | None = None,
    ) -> _Plan:
        each = [table for table, count in zip(tables, counts, strict=True) for _ in range(count)]
        lengths = [start + n + 1 for start, count in zip(starts, counts, strict=True) for n in range(count)]
        return plan(each, lengths, pool, window=window)

    drawing = {name: kernel(getattr(sampling, name)) for name in sampling.__all__ if name != "sample"}
    return GpuKernels(
        operations=Operations(
            dtype=torch.float32,
            pack=lambda weight: weight,
            linear=kernel(F.linear),
            logits=kernel(F.linear),
            rms_norm=kernel(rms_norm),
            add_rms_norm=kernel(add_rms_norm),
            silu_mul=kernel(silu_mul),
            gelu_tanh_mul=kernel(gelu_tanh_mul),
            rope_kv=kernel(rope),
            decode=kernel(attend),
            extend=kernel(attend),
        ),
        plan_decode=plan,
        plan_extend=plan_runs,
        plan_buffer=lambda pool, rows, blocks, window: _Plan(device, rows, blocks, window),
        sampling=SimpleNamespace(  # type: ignore[arg-type]
            **drawing, sample=kernel(sample, host=frozenset({"top_k", "top_p", "min_p"}))
        ),
    )


def on_device(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of ``weights`` on the fake device."""
    return {name: OnDevice(tensor.clone()) for name, tensor in weights.items()}


def weights_of(spec: ModelSpec, seed: int = 0) -> dict[str, Tensor]:
    """Random weights for any family."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in tensor_shapes(spec).items():
        values = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            made[name] = 1 - spec.norm_offset + 0.2 * values
        else:
            made[name] = values * (0.1 if len(shape) == 1 else 2 / math.sqrt(shape[1]))
    return made


class HostDevice:
    """This machine's processor as a device, for kernels that Triton interprets. A recorded step runs anew."""

    torch_device = torch.device("cpu")

    def active(self) -> torch.inference_mode:
        return torch.inference_mode()

    def pinned(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def event(self) -> HostDevice:
        return self

    def wait(self) -> None:
        pass

    synchronize = release_cache = wait

    def graph_pool(self) -> object:
        return self

    def capture(self, compute: Callable[[], None], pool: object) -> Callable[[], None]:
        return compute

    def memory(self) -> tuple[int, int]:
        return 1 << 30, 1 << 31

    def peak(self, compute: Callable[[], None]) -> int:
        compute()
        return 0

    def is_out_of_memory(self, error: BaseException) -> bool:
        return False
