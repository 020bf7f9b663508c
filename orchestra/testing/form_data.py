"""The form that files are uploaded in, ``multipart/form-data``."""

from __future__ import annotations

from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser

from orchestra.testing.content import Content

__all__ = ["FormField", "form_fields"]

_LONGEST_HEAD = 1 << 14


@dataclass(frozen=True, slots=True)
class FormField:
    """One part of a form; ``filename`` where it is a file."""

    content: Content
    filename: str | None = None

    @property
    def value(self) -> bytes:
        return self.content.read()


def form_fields(content_type: str, body: Content) -> dict[str, FormField]:
    """Return the parts of a ``multipart/form-data`` body by their names; none where it is not one."""
    head = Message()
    head["content-type"] = content_type
    boundary = head.get_boundary()
    if head.get_content_type() != "multipart/form-data" or not boundary:
        return {}
    mark = b"\r\n--" + boundary.encode()
    opening = mark[2:]  # the first one has no line end before it
    fields: dict[str, FormField] = {}
    if body.read(0, len(opening)) != opening:
        return fields
    start = len(opening)
    while (stop := body.find(mark, start)) >= 0:
        name, field = _field(body.part(start, stop))
        if name is not None:
            fields[name] = field
        start = stop + len(mark)
    return fields


def _field(part: Content) -> tuple[str | None, FormField]:
    """Return one part's name and field. It starts with a line end."""
    end = part.read(0, _LONGEST_HEAD).find(b"\r\n\r\n")
    described = BytesHeaderParser().parsebytes(part.read(2, max(0, end - 2)) + b"\r\n\r\n")
    name = described.get_param("name", header="content-disposition")
    field = FormField(part.part(end + 4, part.size), described.get_filename())
    return (name if isinstance(name, str) and end >= 0 else None), field
