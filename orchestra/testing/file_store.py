"""The files that a `ScriptedProvider` keeps."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from orchestra.testing.content import Content
from orchestra.testing.script import Reply

__all__ = ["FileStore", "Generated", "StoredFile"]


class Generated:
    """The content of a file that is made again whenever somebody reads it."""

    def __init__(self, make: Callable[[], Iterator[bytes]]) -> None:
        self.pieces = make
        self._size: int | None = None

    @property
    def size(self) -> int:
        """How many bytes there are; found out once, by making them all."""
        if self._size is None:
            self._size = sum(len(piece) for piece in self.pieces())
        return self._size


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of ``account``, which may be seen from ``visible_at`` until ``expires_at``, both on the provider's
    clock. ``reads`` are the scripted answers to those who read it."""

    id: str
    account: str
    filename: str
    purpose: str
    content: Content | Generated
    created_at: float
    visible_at: float
    expires_at: float
    reads: deque[Reply] = field(default_factory=deque)


class FileStore:
    """Files by their id."""

    def __init__(self) -> None:
        self.uploads = 0
        self._files: dict[str, StoredFile] = {}

    def add(
        self,
        account: str,
        filename: str,
        content: Content | Generated,
        *,
        purpose: str,
        now: float,
        hidden: float = 0.0,
        lifetime: float,
        reads: deque[Reply] | None = None,
    ) -> StoredFile:
        """Keep a file, which is to be seen ``hidden`` seconds later."""
        name = f"file-{secrets.token_hex(12)}"
        times = (now, now + hidden, now + lifetime)
        file = StoredFile(name, account, filename, purpose, content, *times, deque() if reads is None else reads)
        self._files[name] = file
        return file

    def find(self, file_id: object, account: str, now: float) -> StoredFile | None:
        """Return the file, or None where this account sees none of that id."""
        file = self._files.get(file_id) if isinstance(file_id, str) else None
        if file is None or file.account != account or not file.visible_at <= now < file.expires_at:
            return None
        return file

    def remove(self, file_id: str) -> None:
        del self._files[file_id]

    def clear(self) -> None:
        self.uploads = 0
        self._files.clear()

    def seen_by(self, account: str, now: float) -> list[StoredFile]:
        """Return all that this account sees, the newest first."""
        return [file for file in reversed(self._files.values()) if self.find(file.id, account, now)]
