"""Durable bulk jobs: a ledger of lines in SQLite, and what takes them in, sends them, and writes their results.

::

    sources  ->  lines  ->  intake  ->  store  <->  runner  ->  dispatch
                                        |   |
                              job, output   diversion: dealer, carrier  ->  batches
                                            |
                                            parking, awaited, leftovers: calls that a program awaits
"""

from __future__ import annotations

from orchestra.jobs.cancelling import Cancellation, CancelledBatch, was_cancelled
from orchestra.jobs.forecast import Forecast, Way
from orchestra.jobs.job import Job
from orchestra.jobs.lines import LineCheck
from orchestra.jobs.lock import is_locked
from orchestra.jobs.manager import JobManager, Requests, checked_name
from orchestra.jobs.output import check_output, output_lines, write_output
from orchestra.jobs.parking import Parking
from orchestra.jobs.progress import OpenBatch, Progress, format_usd
from orchestra.jobs.record import BatchRecord, JobRecord, LineError, OutletTally, Result
from orchestra.jobs.sources import JsonlFile
from orchestra.jobs.store import JobStore
from orchestra.jobs.survey import Survey

__all__ = [
    "BatchRecord",
    "Cancellation",
    "CancelledBatch",
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
