"""How long requests are: from a few percentiles, or from requests that there were."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean

from orchestra.errors import InputError

__all__ = ["LengthMix", "Lengths"]

_NORMAL = NormalDist()
_QUANTILES = 200  # that stand for a distribution
_MOST = 10**7  # tokens of a prompt or an output


@dataclass(frozen=True, slots=True)
class Lengths:
    """A request's prompt, and its output, in tokens."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        return self.prompt + self.output


@dataclass(frozen=True, slots=True)
class LengthMix:
    """Requests that stand for all, each as frequent as the others; at least one."""

    requests: tuple[Lengths, ...]

    @classmethod
    def of_percentiles(cls, prompt: str, output: str) -> LengthMix:
        """From texts such as ``200:p50,1500:p95``, or ``200`` where all are alike.

        Through two percentiles goes a log-normal distribution, which lengths of texts mostly are like; with more
        it changes its width at each. A long prompt has a long output: that needs the most memory. Raises
        InputError.
        """
        prompts, outputs = (
            _Percentiles.parse(text, what) for text, what in ((prompt, "prompt"), (output, "output"))
        )
        places = [(i + 0.5) / _QUANTILES for i in range(_QUANTILES)]
        return cls(tuple(Lengths(prompts.at(place), outputs.at(place)) for place in places))

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
        totals = sorted(lengths.total for lengths in self.requests)
        return totals[max(0, math.ceil(share * len(totals)) - 1)]


@dataclass(frozen=True, slots=True)
class _Percentiles:
    """Pairs of a standard normal deviate and the logarithm of a length, both rising."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def parse(cls, text: str, what: str) -> _Percentiles:
        points = []
        for part in text.split(","):
            length, _, percentile = part.strip().partition(":")
            tokens = _whole(length.strip().replace("_", ""))
            if tokens is None or not 1 <= tokens <= _MOST:
                raise _unreadable(text, what, f"{length.strip()[:40]!r} is no number of tokens")
            points.append((_deviate(percentile.strip(), text, what) if percentile else None, float(tokens)))
        if len(points) == 1:  # one length, of whatever percentile, is all that is known
            return cls(((0.0, math.log(points[0][1])),))
        known = sorted((deviate, tokens) for deviate, tokens in points if deviate is not None)
        if len(known) < len(points):
            raise _unreadable(text, what, "each of several lengths needs its percentile")
        for (low, shorter), (high, longer) in itertools.pairwise(known):
            if low == high or shorter > longer:
                raise _unreadable(text, what, "a higher percentile must have the greater length")
        return cls(tuple((deviate, math.log(tokens)) for deviate, tokens in known))

    def at(self, share: float) -> int:
        """The length that a ``share`` of all does not exceed."""
        if len(self.points) == 1:
            return round(math.exp(self.points[0][1]))
        deviate = _NORMAL.inv_cdf(share)
        above = next((i for i, (x, _) in enumerate(self.points) if i and x >= deviate), len(self.points) - 1)
        (x0, y0), (x1, y1) = self.points[above - 1 : above + 1]
        y = y0 + (y1 - y0) * (deviate - x0) / (x1 - x0)
        return min(_MOST, max(1, round(math.exp(min(y, math.log(_MOST))))))


def _deviate(percentile: str, text: str, what: str) -> float:
    try:
        share = float(percentile.removeprefix("p")) / 100
    except ValueError:
        share = math.nan
    if not (percentile.startswith("p") and 0 < share < 1):
        raise _unreadable(text, what, f"{percentile[:40]!r} is no percentile from p0.1 to p99.9")
    return _NORMAL.inv_cdf(share)


def _unreadable(text: str, what: str, why: str) -> InputError:
    return InputError(f"the {what} lengths {text[:80]!r} cannot be read: {why}. Write 512, or 200:p50,1500:p95")


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _of_line(line: str, place: str) -> Lengths | None:
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
    return Lengths(max(prompt, 1), max(output, 1))


_OUTPUTS: Sequence[str] = ("completion_tokens", "output_tokens")


def _first(usage: object, names: Sequence[str]) -> int | None:
    values = [usage[name] for name in names if name in usage] if isinstance(usage, dict) else []
    value = values[0] if values else None
    return value if type(value) is int and 0 <= value <= _MOST else None
