"""The files that a `ScriptedProvider` keeps, and the form that they are uploaded in."""

from __future__ import annotations

import secrets
import zlib
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser

__all__ = ["FileStore", "FormField", "Packed", "StoredFile", "form_fields"]


class Packed:
    """Bytes, kept compressed: a million lines fit beside everything else."""

    __slots__ = ("_data", "size")

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = zlib.compress(data, level=1)

    def read(self) -> bytes:
        return zlib.decompress(self._data)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of ``account``, which may be seen from ``visible_at`` until ``expires_at``, both on the provider's
    clock."""

    id: str
    account: str
    filename: str
    purpose: str
    content: Packed
    created_at: float
    visible_at: float
    expires_at: float


class FileStore:
    """Files by their id."""

    def __init__(self) -> None:
        self._files: dict[str, StoredFile] = {}

    def add(
        self,
        account: str,
        filename: str,
        content: bytes,
        *,
        purpose: str,
        now: float,
        hidden: float = 0.0,
        lifetime: float,
    ) -> StoredFile:
        """Keep a file, which is to be seen ``hidden`` seconds later."""
        name = f"file-{secrets.token_hex(12)}"
        file = StoredFile(name, account, filename, purpose, Packed(content), now, now + hidden, now + lifetime)
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

    def seen_by(self, account: str, now: float) -> list[StoredFile]:
        """Return all that this account sees, the newest first."""
        return [file for file in reversed(self._files.values()) if self.find(file.id, account, now)]


@dataclass(frozen=True, slots=True)
class FormField:
    """One part of a ``multipart/form-data`` body; ``filename`` where it is a file."""

    name: str
    value: bytes
    filename: str | None = None


def form_fields(content_type: str, body: bytes) -> dict[str, FormField]:
    """Return the parts of a ``multipart/form-data`` body by their names; none where it is not one."""
    head = Message()
    head["content-type"] = content_type
    boundary = head.get_boundary()
    if head.get_content_type() != "multipart/form-data" or not boundary:
        return {}
    fields = {}
    # the body starts with a boundary that no line end goes before
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary.encode())[1:-1]:
        header, _, value = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        described = BytesHeaderParser().parsebytes(header + b"\r\n\r\n")
        name = described.get_param("name", header="content-disposition")
        if isinstance(name, str):
            fields[name] = FormField(name, value, described.get_filename())
    return fields
