"""The sizes of requests: of two distributions, or of requests that there were."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from orchestra.errors import InputError
from orchestra.lengths import Lengths
from orchestra.policies.rank import nearest_rank

__all__ = ["LengthMix", "RequestSize"]

_QUANTILES = 200  # that stand for a distribution
_MOST = 10**7  # tokens of a prompt or an output


@dataclass(frozen=True, slots=True)
class RequestSize:
    """A request's prompt, and its output, in tokens."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        return self.prompt + self.output


@dataclass(frozen=True, slots=True)
class LengthMix:
    """Requests that stand for all, each as frequent as the others; at least one."""

    requests: tuple[RequestSize, ...]

    @classmethod
    def of(cls, prompt: Lengths, output: Lengths) -> LengthMix:
        """From two distributions. A long prompt has a long output: that needs the most memory."""
        places = [(i + 0.5) / _QUANTILES for i in range(_QUANTILES)]
        return cls(tuple(RequestSize(prompt.at(place), output.at(place)) for place in places))

    @classmethod
    def of_trace(cls, lines: Iterable[str], source: str) -> LengthMix:
        """From lines of JSON with a request's ``usage``, or ``prompt_tokens`` and ``completion_tokens``, each.

        What `orchestra run` and a provider's batch write is of that kind; lines without an answer are passed
        over. Raises InputError, naming the line, for what is none.
        """
        found = []
        for number, line in enumerate(lines, 1):
            if line.strip():
                lengths = _of_line(line, f"{source}, line {number}")
                found += [lengths] if lengths is not None else []
        if not found:
            raise InputError(f"{source} has no request whose tokens were counted")
        return cls(tuple(found))

    def doubled(self) -> LengthMix:
        """The same requests with prompts twice as long."""
        return LengthMix(tuple(replace(lengths, prompt=2 * lengths.prompt) for lengths in self.requests))

    @property
    def mean_prompt(self) -> float:
        return fmean(lengths.prompt for lengths in self.requests)

    @property
    def mean_output(self) -> float:
        return fmean(lengths.output for lengths in self.requests)

    @property
    def mean_running(self) -> int:
        """Prompt and output together of a request that runs, on average over time, rounded up.

        Who has a long output runs long, so these are longer than the average of all requests.
        """
        outputs = sum(lengths.output for lengths in self.requests)
        return math.ceil(sum(lengths.output * lengths.total for lengths in self.requests) / outputs)

    @property
    def mean_context(self) -> float:
        """Tokens before the token that is being computed, on average over all output tokens."""
        outputs = sum(lengths.output for lengths in self.requests)
        return sum(one.output * (one.prompt + (one.output - 1) / 2) for one in self.requests) / outputs

    def total_at(self, share: float) -> int:
        """Prompt and output together that a ``share`` of the requests does not exceed (nearest rank)."""
        return nearest_rank((lengths.total for lengths in self.requests), share)


def _of_line(line: str, place: str) -> RequestSize | None:
    """The lengths that a line tells; None for a request that has no answer."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise InputError(f"{place} is no JSON object")
    if "response" in told:  # a line that a batch has written
        response = told["response"]
        told = response.get("body") if isinstance(response, dict) else None
        if not isinstance(told, dict) or told.get("usage") is None:
            return None
    usage = told.get("usage", told)
    found = [_first(usage, names) for names in (("prompt_tokens", "input_tokens"), _OUTPUTS)]
    prompt, output = found
    if prompt is None or output is None:
        raise InputError(f"{place} has no prompt_tokens and completion_tokens that are whole numbers from 0")
    return RequestSize(max(prompt, 1), max(output, 1))


_OUTPUTS: Sequence[str] = ("completion_tokens", "output_tokens")


def _first(usage: object, names: Sequence[str]) -> int | None:
    values = [usage[name] for name in names if name in usage] if isinstance(usage, dict) else []
    value = values[0] if values else None
    return value if type(value) is int and 0 <= value <= _MOST else None
