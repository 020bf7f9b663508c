"""What a file of lines would ask for, without asking."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestra.errors import InputError
from orchestra.jobs.intake import Intake
from orchestra.jobs.lines import LineParser
from orchestra.jobs.sources import NO_LINES, JsonlFile, file_chunks
from orchestra.jobs.store import JobStore
from orchestra.providers.estimate import estimate_tokens

__all__ = ["Survey", "survey"]

_PROMPT_KEYS = ("messages", "prompt", "input", "system", "instructions", "tools", "functions")
_BOUND_KEYS = ("max_completion_tokens", "max_output_tokens", "max_tokens")


@dataclass(slots=True)
class Survey:
    """Lines by model, and the tokens that they would use, by the estimate that admission goes by.

    ``output_tokens`` is the most that the lines allow; ``unbounded`` counts those that set no bound. ``faulty``
    counts those that cannot be used, which is no reason to refuse the others where the input is a stream.
    """

    lines: int = 0
    models: Counter[str] = field(default_factory=Counter)
    input_tokens: int = 0
    output_tokens: int = 0
    unbounded: int = 0
    faulty: int = 0

    def add(self, body: Mapping[str, Any]) -> None:
        """Count a line."""
        self.lines += 1
        self.models[body["model"]] += 1
        self.input_tokens += sum(estimate_tokens(body[key]) for key in _PROMPT_KEYS if key in body)
        bound = next((body[key] for key in _BOUND_KEYS if isinstance(body.get(key), int)), None)
        if bound is None:
            self.unbounded += 1
        else:
            n = body.get("n")
            self.output_tokens += bound * (n if isinstance(n, int) else 1)


async def survey(file: JsonlFile, parser: LineParser) -> Survey:
    """Check an input whole, as a job's intake would, and count. Raises InputError where it would be refused."""
    with tempfile.TemporaryDirectory() as folder:
        store = JobStore(Path(folder) / "jobs.db")
        try:
            job = store.create("survey", created=time.time(), model=None, deadline=None, source=None)
            intake = Intake(store, job, file_chunks(file, parser))
            if not await intake.take_all():
                raise InputError(f"{file.name}: {NO_LINES}")
            if file.strict:
                intake.refuse_faults(file.name)
            return await asyncio.to_thread(_count, store, job.id)
        finally:
            store.close()


def _count(store: JobStore, job: int) -> Survey:
    counted = Survey(faulty=store.tally(job).failed)
    after = 0
    while lines := store.pending(job, after, max_lines=1000, max_bytes=4 << 20):
        for line in lines:
            counted.add(json.loads(line.body))
        after = lines[-1].number
    return counted
