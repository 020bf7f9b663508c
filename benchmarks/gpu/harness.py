"""Runs sections, each within its share of the time and in a process of its own. Standard library alone.

An error on a GPU that reads where it may not ends every later call of its process, a kernel may run for ever, and
memory that one section took is missing for the next: processes end all of that. A section writes each figure to a
file as it has it, so that nothing is lost when it does not come to its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu.figures import Figure, told

__all__ = ["Job", "Section", "allowances", "run_all", "run_here"]

_LINES, _LOG = "lines.jsonl", "log"
_SOFT = 0.85  # of a section's time: begins nothing new after it, so that it can end by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """``function`` of ``module`` is given a lab and yields figures.

    ``share``: of the time, relative to the others'. Sections of one ``group`` that follow each other run at once:
    those that measure no speed.
    """

    name: str
    title: str
    module: str
    share: float
    function: str = "run"
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a section is told.

    ``until``, by ``time.time``, it begins nothing new. ``known`` are ceilings that an earlier one measured.
    """

    section: str
    until: float
    rehearsal: bool
    known: Mapping[str, float]


def allowances(shares: Sequence[float], seconds: float, clock: Callable[[], float]) -> Iterator[float]:
    """Yield how long each of several may take by its share, so that all together take ``seconds`` at most.

    Each is asked for when the one before has ended: what one leaves goes to those after it.
    """
    end = clock() + seconds
    for number, share in enumerate(shares):
        yield max(0.0, end - clock()) * share / sum(shares[number:])


def run_here(section: Section, lab: Any, emit: Callable[[Figure], None]) -> None:
    """Run a section in this process. What it raises is its last figure."""
    try:
        for figure in getattr(import_module(section.module), section.function)(lab):
            emit(figure)
    except Exception as error:  # whatever it is, the others are to run
        emit(Figure(what=section.title, error=told(error)))


def run_all(
    sections: Sequence[Section],
    seconds: float,
    command: Callable[[Path, Path], Sequence[str]],
    tell: Callable[[Section, Figure], None],
    *,
    rehearsal: bool = False,
) -> dict[str, Any]:
    """Run sections one after another, each in a process, and ``tell`` their figures; return what they say beside.

    ``command`` makes the process's command line from the path of the job and that of the file for its lines, both
    JSON. A line is a figure, or ceilings as ``known``, or something else to be returned.
    """
    beside: dict[str, Any] = {}
    known: dict[str, float] = {}
    batches = [list(own) for _, own in groupby(sections, lambda one: one.group or one.name)]
    times = allowances([max(one.share for one in batch) for batch in batches], seconds, time.monotonic)
    for batch, allowed in zip(batches, times, strict=True):
        print(f"{batch[0].title} ...", file=sys.stderr, flush=True)
        until = time.time() + _SOFT * allowed
        stop = time.monotonic() + allowed
        with ExitStack() as stack:
            started = [
                stack.enter_context(
                    _process(command, Job(section=one.name, until=until, rehearsal=rehearsal, known=dict(known)))
                )
                for one in batch
            ]
            for section, (process, folder) in zip(batch, started, strict=True):
                fault = _fault(process, stop - time.monotonic(), allowed, folder / _LOG)
                for line in _lines(folder / _LINES):
                    if "what" in line:
                        tell(section, Figure.from_told(line))
                    else:
                        known.update(line.pop("known", {}))
                        beside.update(line)
                if fault:
                    tell(section, Figure(what=section.title, error=fault))
    return beside


@contextmanager
def _process(
    command: Callable[[Path, Path], Sequence[str]], job: Job
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a section, and a folder for what it writes. At the end nothing is left of all it started."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        asked = folder / "job.json"
        asked.write_text(json.dumps(asdict(job)))
        with (folder / _LOG).open("wb") as out:
            # a group of its own, so that all of it can be ended
            process = subprocess.Popen(
                command(asked, folder / _LINES), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            yield process, folder
        finally:
            _end(process)


def _fault(process: subprocess.Popen[bytes], seconds: float, allowed: float, log: Path) -> str:
    """Wait ``seconds`` for the end of a process; return what went wrong, if anything."""
    try:
        status = process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return f"was ended after {allowed:.0f} s, which is its share of the time"
    if status == 0:
        return ""
    ended = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
    return f"ended with {ended}{': ' if last else ''}{''.join(last)[:300]}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the process and of all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file that may end in the middle of one, or not be there."""
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return
