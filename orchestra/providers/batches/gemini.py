"""Gemini's batches: keyed requests in the body that creates one, and a long-running operation that ends with its
answers in it.

Sources: ai.google.dev/gemini-api/docs, "Batch API" and its reference; google-genai 3.6.1, ``batches.py`` and
``_transformers.py`` (both spellings of states). That answers without keys cannot be told apart: googleapis/
python-genai, issue 1909.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from orchestra.providers.base import Endpoint, FormatError
from orchestra.providers.batches.base import (
    DAY,
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
    WHY,
    JsonLines,
    answered,
    batch,
    batches,
    failed,
    mapping,
    named,
    names,
    parse_object,
    text,
    unix,
    whole,
)
from orchestra.providers.batches.writing import in_url, post_list, quoted
from orchestra.providers.gemini import Gemini

__all__ = ["GeminiBatches"]

_ENDS = {
    "UNSPECIFIED": False,
    "QUEUED": False,
    "PENDING": False,
    "RUNNING": False,
    "UPDATING": False,
    "PAUSED": False,
    "CANCELLING": False,
    "SUCCEEDED": True,
    "PARTIALLY_SUCCEEDED": True,
    "FAILED": True,
    "CANCELLED": True,
    "EXPIRED": True,
}
_SPELLINGS = ("BATCH_STATE_", "JOB_STATE_")
_ENDINGS = {prefix + state: ends for prefix in _SPELLINGS for state, ends in _ENDS.items()}
_CODES = {
    3: ("INVALID_ARGUMENT", 400),
    4: ("DEADLINE_EXCEEDED", 504),
    5: ("NOT_FOUND", 404),
    7: ("PERMISSION_DENIED", 403),
    8: ("RESOURCE_EXHAUSTED", 429),
    9: ("FAILED_PRECONDITION", 400),
    11: ("OUT_OF_RANGE", 400),
    14: ("UNAVAILABLE", 503),
    16: ("UNAUTHENTICATED", 401),
}
"""What a ``google.rpc.Code`` is in an answer's error. The others are the provider's own trouble, or a
cancellation."""
_EXHAUSTED = 8
_PAGE = 20
_LONGEST_ANSWER = 256 << 20


class GeminiBatches(BatchForm):
    """Google's Gemini API, by inline requests, each with its key. Of a batch that expires nothing is told.

    The answers of a batch come together in one JSON object. A limit of ours on its requests keeps that small.
    """

    dialect = Gemini()
    traits = BatchTraits(
        endpoints=frozenset({Endpoint.GENERATE_CONTENT}),
        max_requests=2_000,
        max_bytes=19_000_000,
        hard_expiry=2 * DAY,
        keeps_finished=False,
        carrier="name",
    )
    takes_files = False

    def line(self, order: BatchOrder, line: BatchLine) -> bytes:
        return b'{"request":%b,"metadata":{"key":%b}}\n' % (line.body, quoted(line.custom_id))

    def create(self, order: BatchOrder, content: str | AsyncIterator[bytes], size: int = 0) -> Ask:
        path = self.dialect.path_for("/v1beta/models/model:batchGenerateContent", order.model)
        head = b'{"batch":{"displayName":%b,"inputConfig":{"requests":{"requests":[' % quoted(order.key)
        return post_list(path, head, content, size, b"]}}}}", order.headers)

    def poll(self, batch_id: str) -> Ask:
        return Ask("GET", f"/v1beta/{_resource(batch_id)}")

    def cancel(self, batch_id: str) -> Ask:
        return Ask("POST", f"/v1beta/{_resource(batch_id)}:cancel")

    def list(self, cursor: str | None) -> Ask:
        page = "" if cursor is None else f"&pageToken={in_url(cursor)}"
        return Ask("GET", f"/v1beta/batches?pageSize={_PAGE}{page}")

    def read(self, body: bytes) -> BatchState:
        return batch(_state(parse_object(body)))

    def read_list(self, body: bytes, cursor: str | None) -> tuple[Sequence[BatchState], str | None]:
        page = parse_object(body)
        return batches(page.get("operations") or [], _state), text(page.get("nextPageToken"))

    def results(self, state: BatchState) -> Sequence[Ask]:
        if state.failed is not None or _bare(state.status) == "EXPIRED":
            return []
        if state.files:
            return [Ask("GET", f"/download/v1beta/{_resource(file)}:download?alt=media") for file in state.files]
        return [self.poll(state.id)] if state.ended else []

    def reader(self, ask: Ask) -> ResultReader:
        if ask.path.startswith("/download/"):
            return JsonLines(self.result_of)
        return _OperationReader(self)

    def endings(self) -> Mapping[str, bool]:
        return _ENDINGS

    def result_of(self, told: Mapping[str, Any]) -> LineResult | None:
        """Read one answer: of a file's line, or in the operation."""
        key = named(told.get("key")) or named(mapping(told.get("metadata")).get("key"))
        response, error = told.get("response"), mapping(told.get("error"))
        if key is None:
            return None
        if isinstance(response, Mapping):
            return answered(key, response)
        code = whole(error.get("code")) or 0
        word, status = _CODES.get(code, ("INTERNAL", code if 400 <= code < 600 else 500))
        told_at_once = {"status": word, **error, "code": status}
        return failed(self.dialect, key, told_at_once, status=status)


class _OperationReader:
    """Reads the operation of a batch that has ended, which comes whole."""

    def __init__(self, form: GeminiBatches) -> None:
        self.unreadable = 0
        self._form = form
        self._body = bytearray()

    def feed(self, data: bytes) -> list[LineResult]:
        if len(self._body) + len(data) > _LONGEST_ANSWER:
            raise FormatError(f"the answers of a batch are longer than {_LONGEST_ANSWER} bytes")
        self._body += data
        return []

    def finish(self) -> list[LineResult]:
        operation = parse_object(bytes(self._body))
        self._body.clear()
        output = mapping(operation.get("response")) or mapping(mapping(operation.get("metadata")).get("output"))
        listed = mapping(output.get("inlinedResponses")).get("inlinedResponses")
        found = [self._form.result_of(mapping(one)) for one in listed] if isinstance(listed, list) else []
        results = [result for result in found if result is not None]
        self.unreadable += len(found) - len(results)
        return results


def _state(told: Mapping[str, Any]) -> BatchState | None:
    metadata, error = mapping(told.get("metadata")), mapping(told.get("error"))
    name = named(told.get("name")) or named(metadata.get("name"))
    if name is None:
        return None
    status = text(metadata.get("state")) or "BATCH_STATE_UNSPECIFIED"
    code = whole(error.get("code"))
    word = _CODES.get(code or 0, (str(code or status), 0))[0]
    is_failed = _bare(status) == "FAILED" or (bool(error) and _bare(status) not in ("EXPIRED", "CANCELLED"))
    stats = mapping(metadata.get("batchStats"))
    done = [whole(stats.get(f"{kind}RequestCount")) for kind in ("successful", "failed")]
    output = mapping(told.get("response")) or mapping(metadata.get("output"))
    return BatchState(
        id=name,
        status=status,
        ended=told.get("done") is True or _ENDINGS.get(status, False),
        failed=(word, text(error.get("message")) or WHY) if is_failed else None,
        queue_full=is_failed and code in (_EXHAUSTED, 429),
        key=text(metadata.get("displayName")),
        files=names(output.get("responsesFile")),
        created=unix(metadata.get("createTime")),
        total=whole(stats.get("requestCount")) or None,
        finished=sum(number or 0 for number in done) if stats else None,
    )


def _bare(status: str) -> str:
    """Return a state without the prefix, of which there are two."""
    return status.rpartition("_STATE_")[2]


def _resource(name: str) -> str:
    """Return a name like ``batches/abc`` as a path takes it."""
    return "/".join(in_url(part) for part in name.split("/"))
