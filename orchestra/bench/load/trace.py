"""A recorded load: calls as they once came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestra.bench.load.workload import Request
from orchestra.call import read_json
from orchestra.errors import InputError
from orchestra.policies.traffic import TrafficClass

__all__ = ["Trace"]

_Tokens = Annotated[int, Field(ge=1, le=1_000_000)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    at: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    prompt_tokens: _Tokens
    output_tokens: _Tokens
    traffic: TrafficClass = TrafficClass.INTERACTIVE


@dataclass(frozen=True, slots=True)
class Trace:
    """The calls of a trace, by their instants. A rate stretches or squeezes them all; bursts stay bursts."""

    lines: tuple[_Line, ...]
    name: str = "trace"
    seed: int = 0

    @classmethod
    def read(cls, path: Path, seed: int = 0) -> Trace:
        """Read a JSONL file: ``{"at": 0.5, "prompt_tokens": 90, "output_tokens": 40, "traffic": "bulk"}``.

        ``at`` is in seconds, from whatever zero; ``traffic`` is interactive where it is left out. Other keys are
        ignored. Raises InputError naming the line.
        """
        try:
            # by line feeds alone: JSON may have other ends of lines, as U+2028, within its strings
            texts = path.read_text(encoding="utf-8").split("\n")
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}") from None
        lines = [_read(text, f"{path}:{number}") for number, text in enumerate(texts, 1) if text.strip()]
        lines.sort(key=lambda line: line.at)
        if len(lines) < 2 or lines[0].at == lines[-1].at:
            raise InputError(f"{path} holds no trace: it needs at least two calls at different instants")
        return cls(tuple(lines), path.name, seed)

    @property
    def rate(self) -> float:
        """Calls a second, as they once came."""
        return (len(self.lines) - 1) / (self.lines[-1].at - self.lines[0].at)

    @property
    def seconds(self) -> float:
        """How long it took, from the first call to the last."""
        return self.lines[-1].at - self.lines[0].at

    @property
    def has_interactive(self) -> bool:
        return any(line.traffic is TrafficClass.INTERACTIVE for line in self.lines)

    def requests(self, rate: float) -> Iterator[Request]:
        stretch, began = self.rate / rate, self.lines[0].at
        for number, line in enumerate(self.lines):
            at = (line.at - began) * stretch
            yield Request(number, at, line.traffic, line.prompt_tokens, line.output_tokens, self.seed)

    def describe(self) -> dict[str, str]:
        return {
            "trace": f"{self.name}: {len(self.lines)} calls in {self.seconds:.1f} s, {self.rate:.3g} a second",
            "seed": str(self.seed),
        }


def _read(text: str, place: str) -> _Line:
    try:
        return _Line.model_validate(read_json(text.encode()))
    except ValidationError as error:
        fault = error.errors()[0]
        what = f"{'.'.join(map(str, fault['loc'])) or 'the line'}: {fault['msg']}"
    except ValueError as error:
        what = f"no JSON: {error}"
    raise InputError(f"{place}: {what}")
