"""What a provider says, without the key that it may quote back at us: for errors, logs, and the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import quote

from orchestra.providers.batches import BatchState, LineResult

__all__ = ["Mask"]

_MASKED = "***"
_SHORTEST = 8
"""The length from which a word is taken for a secret: shorter ones occur by chance."""
_LONGEST_WORD = 200
_LONGEST_MESSAGE = 1000


class Mask:
    """Masks the values of headers that say who we are, however they are written, and cuts only then: a part of a
    key would not be known for one."""

    def __init__(self, values: Iterable[str]) -> None:
        secrets = {
            word for value in values for word in (value, value.rpartition(" ")[2]) if len(word) >= _SHORTEST
        }
        written = {form for word in secrets for form in (word, json.dumps(word)[1:-1], quote(word, safe=""))}
        self._secrets = sorted(written, key=lambda word: (-len(word), word))  # the longest, before what is in it

    def text(self, said: str, longest: int = _LONGEST_MESSAGE) -> str:
        """Return what a provider said, up to ``longest`` characters."""
        for secret in self._secrets:
            said = said.replace(secret, _MASKED)
        return said[:longest]

    def state(self, state: BatchState) -> BatchState:
        """Return a batch whose words can be shown."""
        failed = state.failed and (self.text(state.failed[0], _LONGEST_WORD), self.text(state.failed[1]))
        return replace(state, status=self.text(state.status, _LONGEST_WORD), failed=failed)

    def result(self, result: LineResult) -> LineResult:
        """Return a line's result whose error can be shown. An answer is the caller's, and stays as it is."""
        return replace(
            result,
            body=result.body if result.body is None or result.kind == "answered" else self._body(result.body),
            request_id=result.request_id and self.text(result.request_id, _LONGEST_WORD),
            code=self.text(result.code, _LONGEST_WORD),
            message=self.text(result.message),
        )

    def _body(self, body: bytes) -> bytes:
        for secret in self._secrets:
            body = body.replace(secret.encode(), _MASKED.encode())
        return body
