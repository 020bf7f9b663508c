"""What a model on a device does under a mix of requests: how many at once, how fast, and at what latency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestra.errors import InputError
from orchestra.plan.length_mix import LengthMix
from orchestra.plan.roofline import Roofline, StepTime

if TYPE_CHECKING:
    from orchestra.localengine.models.capacity import Capacity

__all__ = ["ENOUGH", "Operation", "Performance", "largest"]

ENOUGH = 0.95
"""Of the most output that there can be, what is near enough to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """So many requests at once, for ever: as soon as one ends another begins.

    ``decode`` is a step of output tokens alone; ``serving`` one with the prompts that begin meanwhile in it, and
    so the mean time between the tokens of an output (TPOT).
    """

    decode: StepTime
    serving: StepTime
    mean_output: float

    @property
    def batch(self) -> int:
        return self.decode.batch

    @property
    def output_tokens_per_second(self) -> float:
        return self.serving.tokens_per_second

    @property
    def requests_per_second(self) -> float:
        return self.output_tokens_per_second / self.mean_output


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """A mix of requests on a device.

    ``most`` requests fit as they run, and ``at_p50`` and ``at_p95`` if all were as long as those; 0 where not one
    is. ``first_token_...``: seconds until a prompt of that length has its first output token, where no other
    request is. ``crossing`` is the batch from which on steps are bound by computing, None where none is.
    ``operations`` are those of some batches, the last of as many as fit, or as the bound on the time between
    tokens allows. ``aim`` is the most whose TPOT is within ``target_seconds``, where that holds. ``best`` is the
    smallest of all whose output comes near that of ``aim``: beyond it everybody waits longer for hardly more.
    """

    mix: LengthMix
    most: int
    at_p50: int
    at_p95: int
    first_token_p50: float
    first_token_p95: float
    crossing: int | None
    operations: tuple[Operation, ...]
    target_seconds: float | None
    aim: Operation
    best: Operation

    @classmethod
    def of(
        cls,
        roofline: Roofline,
        capacity: Capacity,
        mix: LengthMix,
        most_seconds: float | None = None,
        *,
        target_seconds: float | None = None,
    ) -> Performance:
        """That of ``mix``, with at most ``most_seconds`` between the tokens of an output.

        Without that bound, ``target_seconds`` is what the best one keeps to, where one request alone does.
        Raises InputError where they do not fit, or even a single one takes longer.
        """
        if (length := mix.mean_running) > capacity.max_context:
            raise InputError(
                f"requests that run have {length:,} tokens on average, prompt and output together, and the "
                f"longest that fits has {capacity.max_context:,}: give shorter ones, or more memory"
            )
        most = capacity.concurrency(length)
        context, prompt, output = mix.mean_context, mix.mean_prompt, mix.mean_output

        def operation(batch: int) -> Operation:
            return Operation(
                decode=roofline.decode(batch, context),
                serving=roofline.serving(batch, context, prompt, output),
                mean_output=output,
            )

        def at_once(length: int) -> int:
            return capacity.concurrency(length) if length <= capacity.max_context else 0

        limit = most
        if most_seconds is not None:
            limit = largest(most, lambda batch: operation(batch).serving.seconds <= most_seconds)
        if limit < 1:
            alone = operation(1).serving.seconds * 1000
            raise InputError(f"a single request already has {alone:.1f} ms between its tokens: allow more")
        aim, target = limit, target_seconds if most_seconds is None else None
        if target is not None:
            aim = max(1, largest(limit, lambda batch: operation(batch).serving.seconds <= target))
        near = ENOUGH * operation(aim).output_tokens_per_second
        best = 1 + largest(aim - 1, lambda batch: operation(batch).output_tokens_per_second < near)
        crossing = roofline.crossing(context)
        prompts = sorted(lengths.prompt for lengths in mix.requests)
        return cls(
            mix=mix,
            most=most,
            at_p50=at_once(mix.total_at(0.5)),
            at_p95=at_once(mix.total_at(0.95)),
            first_token_p50=roofline.first_token(prompts[(len(prompts) - 1) // 2]),
            first_token_p95=roofline.first_token(prompts[-(-len(prompts) * 95 // 100) - 1]),
            crossing=crossing,
            operations=tuple(operation(size) for size in _batches(limit, best, crossing)),
            target_seconds=target,
            aim=operation(aim),
            best=operation(best),
        )


def _batches(last: int, best: int, crossing: int | None) -> list[int]:
    """Powers of two up to the last, that, the best, and where the regions meet, if it is below."""
    sizes = {1 << i for i in range(last.bit_length())} | {best, last}
    return sorted(sizes | ({crossing} if crossing is not None and crossing < last else set()))


def largest(most: int, allowed: Callable[[int], bool]) -> int:
    """The largest of 0 to ``most`` that is allowed, as all below it are."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if allowed(middle) else (low, middle - 1)
    return low
