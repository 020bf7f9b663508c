"""Anthropic's batches: its requests stand in the body that creates one, its results are one stream of lines.

Sources: platform.claude.com/docs, "Batch processing", "Rate limits"; anthropic 2.14.0,
``types/messages/message_batch.py``, ``resources/messages/batches.py``. A request is checked by the API version
that the batch was created with.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from orchestra.providers.anthropic import STATUS_OF, Anthropic
from orchestra.providers.base import Endpoint
from orchestra.providers.batches.base import (
    Ask,
    BatchForm,
    BatchLine,
    BatchOrder,
    BatchState,
    BatchTraits,
    LineResult,
    ResultReader,
)
from orchestra.providers.batches.reading import (
    JsonLines,
    answered,
    batch,
    batches,
    failed,
    mapping,
    named,
    parse_object,
    text,
    unix,
    whole,
)
from orchestra.providers.batches.writing import in_url, post_list, quoted

__all__ = ["AnthropicBatches"]

_PLACE = "/v1/messages/batches"
_ENDINGS = {"in_progress": False, "canceling": False, "ended": True}
_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")
_PAGE = 100


class AnthropicBatches(BatchForm):
    """Anthropic. A batch holds nothing of ours but its requests: only their ``custom_id`` say whose it is.

    Its results are asked for at an address that we make ourselves: the one that it tells need not be of the host
    that our key is for.
    """

    dialect = Anthropic()
    traits = BatchTraits(
        endpoints=frozenset({Endpoint.MESSAGES}),
        max_requests=100_000,
        max_bytes=256_000_000,
        carrier="custom_id",
    )
    takes_files = False

    def line(self, order: BatchOrder, line: BatchLine) -> bytes:
        return b'{"custom_id":%b,"params":%b}\n' % (quoted(line.custom_id), line.body)

    def create(self, order: BatchOrder, content: str | AsyncIterator[bytes], size: int = 0) -> Ask:
        return post_list(_PLACE, b'{"requests":[', content, size, b"]}", order.headers)

    def poll(self, batch_id: str) -> Ask:
        return Ask("GET", f"{_PLACE}/{in_url(batch_id)}")

    def cancel(self, batch_id: str) -> Ask:
        return Ask("POST", f"{_PLACE}/{in_url(batch_id)}/cancel")

    def list(self, cursor: str | None) -> Ask:
        after = "" if cursor is None else f"&after_id={in_url(cursor)}"
        return Ask("GET", f"{_PLACE}?limit={_PAGE}{after}")

    def read(self, body: bytes) -> BatchState:
        return batch(_state(parse_object(body)))

    def read_list(self, body: bytes, cursor: str | None) -> tuple[Sequence[BatchState], str | None]:
        page = parse_object(body)
        states = batches(page.get("data"), _state)
        last = named(page.get("last_id")) or (states[-1].id if states else None)
        return states, last if page.get("has_more") is True else None

    def results(self, state: BatchState) -> Sequence[Ask]:
        return [Ask("GET", f"{_PLACE}/{in_url(state.id)}/results")] if state.ended else []

    def reader(self, ask: Ask) -> ResultReader:
        return JsonLines(self._result)

    def endings(self) -> Mapping[str, bool]:
        return _ENDINGS

    def _result(self, told: Mapping[str, Any]) -> LineResult | None:
        custom_id, result = named(told.get("custom_id")), mapping(told.get("result"))
        kind = result.get("type")
        if custom_id is None or not isinstance(kind, str):
            return None
        if kind == "succeeded" and isinstance(result.get("message"), Mapping):
            return answered(custom_id, result["message"])
        if kind != "errored":
            return LineResult(custom_id, "unserved", code=kind)  # expired, canceled, or a word yet to come
        envelope = mapping(result.get("error"))
        error = mapping(envelope.get("error")) or envelope
        status = STATUS_OF.get(str(error.get("type")), 500)
        request_id = text(envelope.get("request_id"))
        return failed(self.dialect, custom_id, error, status=status, body=envelope, request_id=request_id)


def _state(told: Mapping[str, Any]) -> BatchState | None:
    name, status = named(told.get("id")), text(told.get("processing_status"))
    if name is None or status is None:
        return None
    counts = mapping(told.get("request_counts"))
    numbers = [whole(counts.get(kind)) or 0 for kind in _COUNTS]
    return BatchState(
        id=name,
        status=status,
        ended=_ENDINGS.get(status, False),
        created=unix(told.get("created_at")),
        expires=unix(told.get("expires_at")),
        total=sum(numbers) or None,
        finished=sum(numbers[1:]) if counts else None,
    )
