"""One process at a time runs a job."""

from __future__ import annotations

import fcntl
import os
from hashlib import blake2b
from pathlib import Path

from orchestra.errors import JobError, JobLocked

__all__ = ["JobLock", "is_locked", "lock_to"]


class JobLock:
    """The right to run a job, held from construction to `release`.

    It is a lock (``flock``) on a file beside the store, so the system takes it back from a process that dies.
    Raises JobLocked where another holder has it.
    """

    def __init__(self, store: Path, name: str) -> None:
        path = _lock_path(store, name)
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise JobError(f"{path}: the job's lock file cannot be made ({error.strerror})") from None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise JobLocked(
                    f"job {name!r} is being run by another process; `orchestra jobs show {name}` follows it, "
                    "and the same command goes on with it once that process has ended"
                ) from None
            except BaseException:
                os.close(descriptor)
                raise
            if _is_same_file(descriptor, path):
                break
            os.close(descriptor)  # its last holder removed the file between our open and our lock
        self._path = path
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Give the right back. May be called again."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self._path.unlink(missing_ok=True)
            os.close(descriptor)


def lock_to(verb: str, store: Path, name: str) -> JobLock:
    """Return the lock of a job, to ``verb`` it. Raises JobLocked, which says what has to be done before."""
    try:
        return JobLock(store, name)
    except JobLocked as error:
        raise JobLocked(f"job {name!r} is being run: stop that first (Ctrl-C), then {verb} it") from error


def is_locked(store: Path, name: str) -> bool:
    """Return whether some process runs that job just now."""
    try:
        descriptor = os.open(_lock_path(store, name), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock_path(store: Path, name: str) -> Path:
    # beside the file itself: by whatever links it is reached, there is one lock
    store = Path(os.path.realpath(store))
    return store.with_name(f"{store.name}-{blake2b(name.encode(), digest_size=8).hexdigest()}.lock")


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
