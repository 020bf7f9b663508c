"""Writes a job's results as OpenAI batch output lines, in input order."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

from orchestra.errors import InputError, JobError
from orchestra.jobs.ledger.record import JobRecord, Result
from orchestra.jobs.ledger.store import JobStore

__all__ = ["check_output", "output_line", "output_lines", "write_output"]


def check_output(path: Path, **others: Path) -> None:
    """Raise InputError where results could not be written to ``path``, or would overwrite one of the ``others``.

    These are named by what they are: ``input=``, ``settings=``, ``store=``.
    """
    try:
        _check_output(path, others)
    except OSError as error:
        raise InputError(f"{path}: cannot be used ({error.strerror}); name another file for the results") from None


def _check_output(path: Path, others: Mapping[str, Path]) -> None:
    target = path.resolve()
    if path == Path("-"):
        raise InputError("-: name a file for the results; `orchestra jobs results` writes them to stdout")
    if target.is_dir():
        raise InputError(f"{path}: a folder; name a file for the results")
    if path.exists() and not path.is_file():  # not by its target: a pipe behind /dev/stdout has no path
        raise InputError(f"{path}: not a regular file; name one for the results")
    for what, other in others.items():
        if target == Path(os.path.realpath(other)) or _is_same_file(target, other):
            raise InputError(f"{path}: would overwrite the {what}; name another file for the results")
    if not target.parent.is_dir():
        raise InputError(f"{path}: there is no folder {target.parent}; make it, or name another file")
    if not os.access(target.parent, os.W_OK | os.X_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise InputError(f"{path}: cannot be written; check its rights, or name another file")


def write_output(store: JobStore, job: JobRecord, path: Path) -> None:
    """Write the results that there are. The file appears whole or not at all. Blocks.

    Raises JobError where it cannot be written; the results stay in the ledger.
    """
    target = path.resolve()
    # not made from the file's own name, which may be as long as names can be
    temporary = target.with_name(f".orchestra-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("wb", buffering=1 << 20) as file:
            file.writelines(output_lines(store, job))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise JobError(f"{path}: cannot be written ({error.strerror}); the results are kept, run again") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def output_lines(store: JobStore, job: JobRecord) -> Iterator[bytes]:
    """Yield a line for each result that there is, in input order."""
    after = 0
    while page := store.results(job.id, after, max_lines=1000, max_bytes=4 << 20):
        for result in page:
            yield output_line(job, result)
        after = page[-1].number


def output_line(job: JobRecord, result: Result) -> bytes:
    """Return one line, with its end: ``id``, ``custom_id``, ``response`` and ``error``.

    As in OpenAI's files, a line that was answered with an HTTP error has that answer for its ``response``, and
    ``error`` is for what failed without an answer. The id is the same each time that the results are written.
    """
    identity = blake2b(f"{job.name}\0{job.created}\0{result.custom_id}".encode(), digest_size=16).hexdigest()
    head = {"id": f"batch_req_{identity}", "custom_id": result.custom_id}
    if result.response is None:
        error = {"code": result.error_code, "message": result.error_message}
        return _dumps({**head, "response": None, "error": error}) + b"\n"
    answer = {"status_code": result.status_code, "request_id": result.request_id or ""}
    # the body is compact JSON already
    return b'%s,"response":%s,"body":%s},"error":null}\n' % (
        _dumps(head)[:-1],
        _dumps(answer)[:-1],
        result.response,
    )


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there, or not to be looked at: whoever opens it says so
        return False


def _dumps(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
