"""Durable bulk jobs: a ledger of lines in SQLite, and what takes them in, sends them, and writes their results.

::

    sources  ->  lines  ->  intake  ->  store  <->  runner  ->  dispatch
                                          |
                                     job, output
"""

from __future__ import annotations

from orchestra.jobs.job import Job
from orchestra.jobs.lines import LineCheck
from orchestra.jobs.lock import is_locked
from orchestra.jobs.manager import JobManager, Requests, checked_name
from orchestra.jobs.output import check_output, output_lines, write_output
from orchestra.jobs.progress import Progress
from orchestra.jobs.record import JobRecord, LineError, Result
from orchestra.jobs.sources import JsonlFile
from orchestra.jobs.store import JobStore
from orchestra.jobs.survey import Survey

__all__ = [
    "Job",
    "JobManager",
    "JobRecord",
    "JobStore",
    "JsonlFile",
    "LineCheck",
    "LineError",
    "Progress",
    "Requests",
    "Result",
    "Survey",
    "check_output",
    "checked_name",
    "is_locked",
    "output_lines",
    "write_output",
]
