"""How much of an answer went by, for the answers that do not tell what they used."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

__all__ = ["SeenOutput"]

_BYTES_PER_TOKEN = 4
_TEXT = re.compile(
    rb'"(?:content|text|delta|refusal|thinking|reasoning|reasoning_content|arguments|partial_json)"\s*:\s*'
    rb'"([^"\\]*(?:\\.[^"\\]*)*)"'
)
"""What a model writes, in every dialect, whole or in pieces. What is cut between two reads is not missed much."""


class SeenOutput:
    """Counts the text of an answer as it passes, in tokens of four bytes.

    A stream tells its usage at its end. One that breaks, or that its reader drops, ends without; and what it has
    written until then is paid for all the same.
    """

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 0

    @property
    def tokens(self) -> int:
        return -(-self._bytes // _BYTES_PER_TOKEN)

    def feed(self, data: bytes) -> None:
        """Count a piece of the answer."""
        for text in _TEXT.findall(data):
            self._bytes += len(text)

    def watch(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Return ``source``, counted as it is read."""
        return _Watched(source, self)


class _Watched:
    __slots__ = ("_seen", "_source")

    def __init__(self, source: AsyncIterator[bytes], seen: SeenOutput) -> None:
        self._source = source
        self._seen = seen

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._source)
        self._seen.feed(chunk)
        return chunk
