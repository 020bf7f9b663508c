"""What the forms share in writing: bodies that are never held whole."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

from orchestra.call import Headers
from orchestra.errors import InputError
from orchestra.providers.batches.base import Ask

__all__ = ["in_url", "post_json", "post_line", "post_list", "quoted", "upload_file"]


def post_json(path: str, body: Mapping[str, Any], headers: Headers = ()) -> Ask:
    """Return a POST of a JSON object."""
    return Ask("POST", path, json.dumps(body, separators=(",", ":")).encode(), (*_JSON, *headers))


def post_line(path: str, line: AsyncIterator[bytes], size: int, headers: Headers = ()) -> Ask:
    """Return a POST of the JSON object that a single line is: of ``size`` bytes, its newline included."""
    return post_list(path, b"", line, size, b"", headers)


def post_list(
    path: str, head: bytes, lines: str | AsyncIterator[bytes], size: int, tail: bytes, headers: Headers = ()
) -> Ask:
    """Return a POST of a JSON object that ends in a list of ``lines``: of ``size`` bytes, newlines included.

    ``head`` is the object up to the list's bracket, ``tail`` what follows the last element. Raises TypeError for a
    file's id in place of the lines.
    """
    if isinstance(lines, str):
        raise TypeError("its requests, not a file's id, are what a batch is created of")
    length = len(head) + size - 1 + len(tail)  # each newline but the last becomes a comma
    body = _of_length(_listed(head, lines, tail), length)
    return Ask("POST", path, body, (*_JSON, _length(length), *headers))


def upload_file(path: str, fields: Mapping[str, str], name: str, content: AsyncIterator[bytes], size: int) -> Ask:
    """Return a POST of a form with ``fields`` and, last, the file ``name`` of ``size`` bytes (RFC 7578)."""
    boundary = f"orchestra-{secrets.token_hex(16)}"
    parts = [
        f'--{boundary}\r\ncontent-disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
        for field, value in fields.items()
    ]
    parts.append(
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n'
        "content-type: application/jsonl\r\n\r\n"
    )
    head, tail = "".join(parts).encode(), f"\r\n--{boundary}--\r\n".encode()
    length = len(head) + size + len(tail)
    headers = (("content-type", f"multipart/form-data; boundary={boundary}"), _length(length))
    return Ask("POST", path, _of_length(_framed(head, content, tail), length), headers)


def quoted(word: str) -> bytes:
    """Return a string as JSON writes it."""
    return json.dumps(word).encode()


def in_url(name: str) -> str:
    """Return a provider's name for something as one step of a path."""
    return quote(name, safe="").replace(".", "%2E")


_JSON: Headers = (("content-type", "application/json"),)


def _length(length: int) -> tuple[str, str]:
    return ("content-length", str(length))


async def _framed(head: bytes, content: AsyncIterator[bytes], tail: bytes) -> AsyncIterator[bytes]:
    yield head
    async for piece in content:
        yield piece
    yield tail


async def _listed(head: bytes, lines: AsyncIterator[bytes], tail: bytes) -> AsyncIterator[bytes]:
    yield head
    comma = b""
    async for piece in lines:
        elements = piece.removesuffix(b"\n").replace(b"\n", b",")
        if elements:
            yield comma + elements
            comma = b","
    yield tail


async def _of_length(body: AsyncIterator[bytes], length: int) -> AsyncIterator[bytes]:
    """Yield a body that was told to be of ``length`` bytes. Raises InputError before it says more or less."""
    left = length
    async for piece in body:
        left -= len(piece)
        if left < 0:
            break
        yield piece
    if left:
        raise InputError("the lines of a batch do not make up the size that was told of them")
