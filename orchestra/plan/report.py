"""A plan: a model, a device, a mix of requests, and what comes of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from orchestra.errors import InputError
from orchestra.plan.cost import Comparison, HostedPrice, compare, dollars_per_request
from orchestra.plan.device import Device
from orchestra.plan.fit import cpu_capacity, gpu_capacity
from orchestra.plan.footprint import Footprint
from orchestra.plan.length_mix import LengthMix
from orchestra.plan.performance import Operation, Performance, largest
from orchestra.plan.roofline import Roofline

if TYPE_CHECKING:
    from orchestra.localengine.models.capacity import Capacity, KvDtype
    from orchestra.localengine.models.spec import ModelSpec
    from orchestra.localengine.precision import Precision
    from orchestra.localengine.settled_config import SettledConfig

__all__ = ["Plan", "Wanted", "make_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a plan is made for.

    ``precision`` is what matrices are kept in; ``kv_dtype`` None goes with it. ``kv_bytes`` None leaves the size
    of the KV cache to the engine. ``tpot_seconds`` bounds the time between an output's tokens. ``per_hour`` is
    what the device costs, in US dollars, and ``hosted`` what is held against it.
    """

    mix: LengthMix
    precision: Precision
    kv_dtype: KvDtype | None = None
    kv_bytes: int | None = None
    tpot_seconds: float | None = None
    per_hour: float | None = None
    hosted: HostedPrice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What comes of it. ``doubled`` is that with prompts twice as long, or why there is none."""

    name: str
    device: Device
    on_cpu: bool
    wanted: Wanted
    model: Footprint
    capacity: Capacity
    roofline: Roofline
    performance: Performance
    doubled: Performance | str

    def dollars(self, operation: Operation) -> float | None:
        """What a million tokens of output cost, with their prompts, at full load; None without ``per_hour``."""
        if self.wanted.per_hour is None:
            return None
        return dollars_per_request(self.wanted.per_hour, operation.output_tokens_per_second) * 1e6

    @property
    def comparison(self) -> Comparison | None:
        """The best operation against the hosted price; None where one of both is not known."""
        if self.wanted.per_hour is None or self.wanted.hosted is None:
            return None
        own = dollars_per_request(self.wanted.per_hour, self.performance.best.requests_per_second)
        mix = self.performance.mix
        return compare(own, self.wanted.hosted, mix.mean_prompt, mix.mean_output)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values: seconds, bytes, tokens, US dollars."""
        capacity, comparison = self.capacity, self.comparison
        told = None
        if comparison is not None:
            told = asdict(comparison) | {
                "worth_from": comparison.worth_from,
                "worth_from_batch": comparison.worth_from_batch,
            }
        return {
            "model": {"name": self.name, **asdict(self.model)},
            "device": asdict(self.device) | {"flops": dict(self.device.flops)},
            "precision": self.wanted.precision,
            "kv_dtype": self.wanted.kv_dtype,
            "capacity": {
                **asdict(capacity),
                "kv_bytes": capacity.kv_bytes,
                "max_tokens": capacity.max_tokens,
                "max_context": capacity.max_context,
            },
            "ridge_tokens": self.roofline.ridge,
            "load": self._load(self.performance),
            "doubled_prompts": self._load(self.doubled) if isinstance(self.doubled, Performance) else None,
            "doubled_prompts_fault": self.doubled if isinstance(self.doubled, str) else None,
            "cost": told,
        }

    def _load(self, performance: Performance) -> dict[str, Any]:
        mix = performance.mix
        return {
            "prompt_tokens_mean": mix.mean_prompt,
            "output_tokens_mean": mix.mean_output,
            "request_tokens": {"running": mix.mean_running, "p50": mix.total_at(0.5), "p95": mix.total_at(0.95)},
            "concurrency": {"running": performance.most, "p50": performance.at_p50, "p95": performance.at_p95},
            "first_token_seconds": {"p50": performance.first_token_p50, "p95": performance.first_token_p95},
            "compute_bound_from": performance.crossing,
            "tpot_target_seconds": performance.target_seconds,
            "best": self._operation(performance.best),
            "operations": [self._operation(operation) for operation in performance.operations],
        }

    def _operation(self, operation: Operation) -> dict[str, Any]:
        return {
            "batch": operation.batch,
            "step_seconds": operation.decode.seconds,
            "decode_tokens_per_second": operation.decode.tokens_per_second,
            "bound": operation.decode.bound,
            "tpot_seconds": operation.serving.seconds,
            "output_tokens_per_second": operation.output_tokens_per_second,
            "requests_per_second": operation.requests_per_second,
            "dollars_per_million_output_tokens": self.dollars(operation),
        }


def make_plan(name: str, spec: ModelSpec, device: Device, wanted: Wanted, *, on_cpu: bool) -> Plan:
    """Plan for the model ``name``. ``on_cpu`` tells whether the engine runs it as it does on a CPU.

    Raises InputError where the model or the requests do not fit, and where the device has no products of
    ``wanted.precision`` or cannot keep ``wanted.kv_dtype``.
    """
    precision, kv_dtype = wanted.precision, wanted.kv_dtype
    if precision not in device.flops:
        raise InputError(f"{device.name} is planned for with {' or '.join(device.flops)}, not with {precision}")
    if on_cpu and kv_dtype not in (None, "float32"):
        raise InputError(f"on a CPU the engine keeps keys and values in float32, not in {kv_dtype}")
    if kv_dtype == "float8" and not device.float8:
        raise InputError(f"{device.name} cannot keep keys and values in float8")
    if wanted.per_hour is not None:
        dollars_per_request(wanted.per_hour, 1.0)  # refuses what is no price

    settings = _settings(spec, device, precision, on_cpu=on_cpu)

    def fits(step_tokens: int) -> Capacity:
        if on_cpu:
            return cpu_capacity(spec, device, precision, block_size=settings.block_size, kv_bytes=wanted.kv_bytes)
        return gpu_capacity(
            spec,
            device,
            precision,
            block_size=settings.block_size,
            step_tokens=step_tokens,
            kv_dtype=kv_dtype,
            kv_bytes=wanted.kv_bytes,
        )

    # a step has a token of each request that runs, and takes the more memory the more there are
    length, least = wanted.mix.mean_running, settings.step_tokens
    target = settings.tpot_target_ms / 1000

    def run(batch: int) -> bool:
        try:
            return fits(max(least, batch)).concurrency(length) >= batch
        except InputError:
            return False

    step_tokens = max(least, largest(fits(least).concurrency(length), run))
    capacity = fits(step_tokens)
    model = Footprint.of(spec, precision, kv_dtype)
    roofline = Roofline(model=model, device=device, dtype=precision, step_tokens=step_tokens)
    doubled: Performance | str
    try:
        doubled = Performance.of(
            roofline, capacity, wanted.mix.doubled(), wanted.tpot_seconds, target_seconds=target
        )
    except InputError as error:
        doubled = str(error)
    return Plan(
        name=name,
        device=device,
        on_cpu=on_cpu,
        wanted=wanted,
        model=model,
        capacity=capacity,
        roofline=roofline,
        performance=Performance.of(roofline, capacity, wanted.mix, wanted.tpot_seconds, target_seconds=target),
        doubled=doubled,
    )


def _settings(spec: ModelSpec, device: Device, precision: Precision, *, on_cpu: bool) -> SettledConfig:
    """What the engine chooses there by itself."""
    from orchestra.localengine.config import EngineConfig
    from orchestra.localengine.models.capacity import weight_bytes
    from orchestra.localengine.settled_config import SettledConfig

    if on_cpu:
        return SettledConfig.on_cpu(EngineConfig())
    free = device.memory - weight_bytes(spec, precision)
    return SettledConfig.on_gpu(EngineConfig(), free=free, total=device.memory, vocab_size=spec.vocab_size)
