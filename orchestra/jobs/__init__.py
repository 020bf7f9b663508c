"""Durable bulk jobs: a ledger of lines in SQLite, and what takes them in, sends them, and writes their results.

::

    intake/  ->  ledger/  <->  sending/    lines that go by themselves   ->  dispatch
                          <->  diversion/  lines that ride in batches    ->  batches
                                   ^
                                   |
                               awaited/    calls that a program awaits, and that ride
    progress/                              how far, how fast and how dear that is

On top stand ``manager``, which takes jobs in; ``job``, as a program holds it; ``job_run`` and ``job_riders``, one
run of it; ``output``, its results as a file. Imports run one way: the ledger knows none of the others, and no
folder knows what stands on top.
"""

from __future__ import annotations

from orchestra.jobs.awaited.parking import Parking
from orchestra.jobs.diversion.cancelling import Cancellation, CancelledBatch, was_cancelled
from orchestra.jobs.diversion.deleting import Deletion
from orchestra.jobs.intake.line_parser import LineCheck
from orchestra.jobs.intake.sources import JsonlFile
from orchestra.jobs.intake.survey import Survey
from orchestra.jobs.job import Job
from orchestra.jobs.ledger.job_name import checked_name
from orchestra.jobs.ledger.lock import is_locked
from orchestra.jobs.ledger.record import BatchRecord, JobRecord, LineError, OutletTally, Result
from orchestra.jobs.ledger.store import JobStore
from orchestra.jobs.manager import JobManager, Requests
from orchestra.jobs.output import check_output, output_lines, write_output
from orchestra.jobs.progress.day_wait import DayWait
from orchestra.jobs.progress.forecast import Forecast, Way
from orchestra.jobs.progress.progress import OpenBatch, Progress, format_usd

__all__ = [
    "BatchRecord",
    "Cancellation",
    "CancelledBatch",
    "DayWait",
    "Deletion",
    "Forecast",
    "Job",
    "JobManager",
    "JobRecord",
    "JobStore",
    "JsonlFile",
    "LineCheck",
    "LineError",
    "OpenBatch",
    "OutletTally",
    "Parking",
    "Progress",
    "Requests",
    "Result",
    "Survey",
    "Way",
    "check_output",
    "checked_name",
    "format_usd",
    "is_locked",
    "output_lines",
    "was_cancelled",
    "write_output",
]
