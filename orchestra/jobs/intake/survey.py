"""What a file of lines would ask for, without asking."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from orchestra.jobs.intake.inspection import Inspection, inspect_file
from orchestra.jobs.intake.line_parser import LineParser
from orchestra.jobs.intake.sources import JsonlFile
from orchestra.jobs.ledger.line import Line
from orchestra.jobs.ledger.record import JobRecord
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.ledger.threads import in_steps, in_thread
from orchestra.providers.estimate import estimate_tokens

__all__ = ["Kind", "Survey", "survey", "survey_left"]

_PROMPT_KEYS = ("messages", "prompt", "input", "system", "instructions", "tools", "functions")
_BOUND_KEYS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_NO_OUTPUT = "/embeddings"
_SAMPLES, _SAMPLE_BYTES = 20, 64 << 10

_Read = Callable[..., list[Line]]


@dataclass(slots=True)
class Kind:
    """Lines of one endpoint and model, and the tokens that they would use, by the estimate that admission goes by.

    ``size`` is that of their bodies, in bytes. ``output_tokens`` is the most that the lines allow; ``unbounded``
    counts those that set no bound. ``samples`` are bodies of the first of them.
    """

    path: str
    model: str
    lines: int = 0
    size: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    unbounded: int = 0
    samples: list[bytes] = field(default_factory=list, repr=False)

    def add(self, body: bytes, payload: Mapping[str, Any]) -> None:
        """Count a line: its body, as bytes and parsed."""
        self.lines += 1
        self.size += len(body)
        self.input_tokens += sum(estimate_tokens(payload[key]) for key in _PROMPT_KEYS if key in payload)
        bound = next((payload[key] for key in _BOUND_KEYS if isinstance(payload.get(key), int)), None)
        if bound is not None:
            n = payload.get("n")
            self.output_tokens += bound * (n if isinstance(n, int) else 1)
        elif not self.path.endswith(_NO_OUTPUT):
            self.unbounded += 1
        if len(self.samples) < _SAMPLES and len(body) <= _SAMPLE_BYTES:
            self.samples.append(body)


@dataclass(slots=True)
class Survey:
    """Lines by kind.

    ``faulty`` counts those that cannot be used, which is no reason to refuse the others where the input is a
    stream.
    """

    kinds: dict[tuple[str, str], Kind] = field(default_factory=dict)
    faulty: int = 0

    def add(self, line: Line) -> None:
        """Count a line."""
        payload = json.loads(line.body)
        key = (line.path, payload["model"])
        if key not in self.kinds:
            self.kinds[key] = Kind(*key)
        self.kinds[key].add(line.body, payload)

    @property
    def lines(self) -> int:
        return sum(kind.lines for kind in self.kinds.values())

    @property
    def models(self) -> Counter[str]:
        """How many lines there are of each model."""
        models: Counter[str] = Counter()
        for kind in self.kinds.values():
            models[kind.model] += kind.lines
        return models

    @property
    def input_tokens(self) -> int:
        return sum(kind.input_tokens for kind in self.kinds.values())

    @property
    def output_tokens(self) -> int:
        """The most that lines with a bound allow."""
        return sum(kind.output_tokens for kind in self.kinds.values())

    @property
    def unbounded(self) -> int:
        """How many lines set no bound to their answers."""
        return sum(kind.unbounded for kind in self.kinds.values())


async def survey(file: JsonlFile, parser: LineParser) -> Survey:
    """Check an input whole, as a job's intake would, and count. Raises InputError where it would be refused."""
    found = await inspect_file(file, parser)
    if file.strict or not found.lines:
        found.refuse(file.name)
    return await in_steps(_count(file, parser, found))


def _count(file: JsonlFile, parser: LineParser, found: Inspection) -> Generator[None, None, Survey]:
    counted = Survey(faulty=found.fault_count)
    twice = iter(found.twice)
    passed_over = next(twice, None)
    for chunk in file.chunks(parser):
        yield
        for line in chunk:
            if line.number == passed_over:
                passed_over = next(twice, None)
            elif isinstance(line, Line):
                counted.add(line)
    return counted


async def survey_left(
    store: JobStore, job: JobRecord, file: JsonlFile, parser: LineParser, *, retry_failed: bool
) -> Survey | None:
    """Count the lines of a job that have no end and ride in no batch; with ``retry_failed`` those too that failed.

    None where the job was read from another file, or with another model.
    """
    if await in_thread(lambda: file.digest(model=parser.model)) != job.source:
        return None
    return await in_steps(_count_left(store, job, file, parser, retry_failed))


def _count_left(
    store: JobStore, job: JobRecord, file: JsonlFile, parser: LineParser, retry_failed: bool
) -> Generator[None, None, Survey]:
    counted = Survey()
    reads: list[_Read] = [partial(store.pending, outlet=None), partial(store.pending, outlet=0)]
    if retry_failed:
        reads.append(store.retriable)
    for read in reads:
        for page in _pages(read, job.id):
            yield
            for line in page:
                counted.add(line)
    if job.state == "loading":
        for chunk in file.chunks(parser, after=store.last_number(job.id)):
            yield
            for entry in chunk:
                if isinstance(entry, Line):
                    counted.add(entry)
    return counted


def _pages(read: _Read, job: int) -> Iterator[list[Line]]:
    after = 0
    while page := read(job, after, max_lines=1000, max_bytes=4 << 20):
        yield page
        after = page[-1].number
