"""Traffic as it once came: from a log of events."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

from orchestra.errors import InputError
from orchestra.observe.call_log import began_at, begins_call
from orchestra.observe.event_log import EventLog
from orchestra.observe.events import Event
from orchestra.policies.traffic import TrafficClass
from orchestra.simulate.tally import JobTally
from orchestra.simulate.traffic import Ask, Burst, Size, Traffic

__all__ = ["read_recording"]

_DAY = 86_400.0


@dataclass(slots=True)
class _Seen:
    """What is known of a call that there was."""

    at: float
    traffic: TrafficClass
    model: str
    job: str | None
    time_left: float | None = None
    prompt: float | None = None
    most_output: float | None = None
    counted_prompt: int | None = None
    output: int | None = None
    seconds: float | None = None
    rides: bool = False
    """Whether it waits for a batch, whose answer tells nothing of how long one takes that is sent at once."""

    def hear(self, event: Event) -> None:
        if event.estimated_input_tokens is not None and self.prompt is None:
            self.prompt = event.estimated_input_tokens
            self.most_output = event.estimated_output_tokens
        if event.kind == "queued" and self.time_left is None:
            self.time_left = event.time_left
        if event.kind in ("parked", "sent"):
            self.rides = event.kind == "parked"
        if event.kind == "settled":
            self.counted_prompt, self.output = event.input_tokens, event.output_tokens
            self.seconds = None if self.rides else event.duration

    def size(self, usual: _Usual) -> Size:
        """Return its size. What is not known of one that had no answer, or never was sent, is as is usual."""
        output = usual.output if self.output is None else self.output
        prompt = self.prompt if self.prompt is not None else self.counted_prompt or usual.prompt
        most = None if self.most_output is None else int(self.most_output)
        return Size(max(1, int(prompt)), output, most, self.counted_prompt, self.seconds)


@dataclass(frozen=True, slots=True)
class _Usual:
    """The median call, in tokens."""

    prompt: int
    output: int

    @classmethod
    def of(cls, calls: Collection[_Seen]) -> Self:
        prompts = sorted(int(one.prompt) for one in calls if one.prompt is not None)
        outputs = sorted(one.output for one in calls if one.output is not None)
        return cls(*(values[len(values) // 2] if values else 1 for values in (prompts, outputs)))


@dataclass(slots=True)
class _Recording:
    calls: dict[str, _Seen] = field(default_factory=dict)
    jobs: dict[str, JobTally] = field(default_factory=dict)
    last: float = 0.0

    def hear(self, event: Event) -> None:
        self.last = max(self.last, event.at)
        if event.kind in ("job_began", "job_ended"):
            self._hear_job(event)
            return
        call = self.calls.get(event.call)
        if call is None:
            model = event.model or event.route
            if event.kind == "batch_ended" or not begins_call(event) or not model:
                return  # of no call, or it began before the log did
            call = self.calls[event.call] = _Seen(began_at(event), event.traffic, model, event.job)
        call.hear(event)

    def _hear_job(self, event: Event) -> None:
        name = event.job or ""
        if event.kind == "job_began":
            self.jobs.setdefault(name, JobTally(event.at, event.time_left, event.model))
        elif (job := self.jobs.get(name)) is not None:
            job.lines, job.model = event.lines, job.model or event.model
            job.input_tokens, job.output_tokens = event.input_tokens or 0, event.output_tokens or 0


def read_recording(path: str | os.PathLike[str]) -> Traffic:
    """Return the traffic of a log that `EventLog` wrote.

    Each call comes when it came, is as long as it was, and takes as long to answer as it took, where it was
    answered. A durable job comes whole when it began, with the deadline that it had; its lines that rode in
    batches are of the mean length of those, since a log has only their sum. A single call that had time and waited
    for a batch comes as one that is sent at once. Of one that was given up before any route took it, nothing but
    its instant is known: it is as long as the median one, and waits as long as it takes.

    A job whose lines ask several models comes as one job for each; lines that rode in batches ask the one that
    most of the others do. Where the log names no model for a job at all, ``about`` says that it is left out.

    Raises InputError where the file cannot be read, is no such log, or holds no call.
    """
    return _traffic(EventLog.read(path), os.fspath(path))


def _traffic(events: Iterable[Event], source: str) -> Traffic:
    found = _Recording()
    for event in events:
        found.hear(event)
    instants = [call.at for call in found.calls.values()] + [job.began for job in found.jobs.values()]
    if not instants:
        raise InputError(f"{source} holds no call: it must be a log of events, as EventLog writes it")
    began = min(instants)
    usual = _Usual.of(found.calls.values())
    calls = [
        Ask(one.at - began, one.traffic, one.model, one.size(usual), one.time_left, one.job)
        for one in found.calls.values()
        if one.job not in found.jobs
    ]
    calls.sort(key=lambda one: one.at)
    bursts = {name: [*_bursts(name, job, found, began, usual)] for name, job in found.jobs.items()}
    jobs = [burst for parts in bursts.values() for burst in parts]
    about = {"calls": f"{source}: {len(calls)} calls and {len(jobs)} jobs in {found.last - began:.0f} s"}
    if left := [name for name, parts in bursts.items() if not parts]:
        about["left out"] = f"jobs of which the log names no model, or no line: {', '.join(left)}"
    if parted := [name for name, parts in bursts.items() if len(parts) > 1]:
        about["in parts"] = f"jobs that ask several models, each as a job of its own: {', '.join(parted)}"
    return Traffic(calls, jobs, found.last - began, began % _DAY, about)


def _bursts(name: str, job: JobTally, found: _Recording, began: float, usual: _Usual) -> Iterator[Burst]:
    """Yield a job's lines by the model that they ask."""
    seen = [call for call in found.calls.values() if call.job == name]
    if job.lines is not None:  # a line may have been several calls: those with an answer count first
        seen = sorted(seen, key=lambda call: call.output is None)[: job.lines]
    lines: dict[str, list[Size]] = {}
    for call in seen:
        lines.setdefault(job.model or call.model, []).append(call.size(usual))
    sizes = [size for those in lines.values() for size in those]
    most = job.model or max(lines, key=lambda model: len(lines[model]), default=None)
    rest = max(0, (job.lines or 0) - len(sizes))
    if rest and most is not None:
        prompt = max(1, (job.input_tokens - sum(one.counted_prompt or one.prompt for one in sizes)) // rest)
        output = max(1, (job.output_tokens - sum(one.output for one in sizes)) // rest)
        lines.setdefault(most, []).extend([Size(prompt, output, output)] * rest)
    for number, (model, those) in enumerate(lines.items(), 1):
        part = name if len(lines) == 1 else f"{name}-{number}"
        yield Burst(part, job.began - began, model, those, job.time_left)
