"""OpenAI's batches, and those of the many that do as OpenAI: a file of lines, a batch of it, two files of results.

Sources: the guide "Batch" of platform.openai.com/docs; openai 3.57.0, ``types/batch.py``,
``types/batch_create_params.py``, ``types/file_create_params.py``. That a queue without room fails the batch after
its creation (``token_limit_exceeded``): openai/openai-python, issue 2084.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from orchestra.providers.base import Endpoint, FormatError, endpoint_at
from orchestra.providers.batches.base import (
    DAY,
    Ask,
    BatchForm,
    BatchLine,
    BatchOrder,
    BatchState,
    BatchTraits,
    ResultReader,
)
from orchestra.providers.batches.reading import (
    WHY,
    JsonLines,
    batch,
    batches,
    first_of,
    mapping,
    named,
    names,
    parse_object,
    result_of,
    text,
    unix,
    whole,
)
from orchestra.providers.batches.writing import in_url, post_json, quoted, upload_file
from orchestra.providers.openai import OpenAI, OpenAICompatible

__all__ = ["KEY_FIELD", "OpenAIBatches", "OpenAICompatibleBatches"]

KEY_FIELD = "orchestra_batch"
"""The field of a batch's metadata that holds our key."""
_QUEUE_FULL = frozenset({"token_limit_exceeded", "too_many_tasks"})
_ENDINGS = {
    "validating": False,
    "in_progress": False,
    "finalizing": False,
    "cancelling": False,
    "completed": True,
    "failed": True,
    "expired": True,
    "cancelled": True,
}
_PAGE = 100


class OpenAIBatches(BatchForm):
    """OpenAI itself. Its lines are for one model, and their prompts take room in a queue of the model's own."""

    dialect = OpenAI()
    traits: ClassVar[BatchTraits] = BatchTraits(
        endpoints=frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.RESPONSES, Endpoint.EMBEDDINGS}),
        max_requests=50_000,
        max_bytes=200_000_000,
    )

    place: ClassVar[str] = "/batches"
    """Where batches are, below the root."""

    def line(self, order: BatchOrder, line: BatchLine) -> bytes:
        head = b'{"custom_id":%b,"method":"POST","url":%b,"body":' % (
            quoted(line.custom_id),
            quoted(self.endpoint_of(order)),
        )
        return head + line.body + b"}\n"

    def upload(self, order: BatchOrder, content: AsyncIterator[bytes], size: int) -> Ask:
        return upload_file(self.path("/files"), {"purpose": "batch"}, f"{order.key}.jsonl", content, size)

    def read_upload(self, body: bytes) -> str:
        name = named(parse_object(body).get("id"))
        if name is None:
            raise FormatError("the answer is no file")
        return name

    def create(self, order: BatchOrder, content: str | AsyncIterator[bytes], size: int = 0) -> Ask:
        asked = {
            "input_file_id": content,
            "endpoint": self.endpoint_of(order),
            "completion_window": "24h" if order.window <= DAY else f"{round(order.window / DAY)}d",
            "metadata": {KEY_FIELD: order.key},
        }
        return post_json(self.path(self.place), asked, order.headers)

    def poll(self, batch_id: str) -> Ask:
        return Ask("GET", self.path(f"{self.place}/{in_url(batch_id)}"))

    def cancel(self, batch_id: str) -> Ask:
        return Ask("POST", self.path(f"{self.place}/{in_url(batch_id)}/cancel"))

    def list(self, cursor: str | None) -> Ask:
        after = "" if cursor is None else f"&after={in_url(cursor)}"
        return Ask("GET", self.path(f"{self.place}?limit={_PAGE}{after}"))

    def read(self, body: bytes) -> BatchState:
        return batch(self.state_of(parse_object(body)))

    def read_list(self, body: bytes, cursor: str | None) -> tuple[Sequence[BatchState], str | None]:
        page = parse_object(body)
        states = batches(page.get("data"), self.state_of)
        last = named(page.get("last_id")) or (states[-1].id if states else None)
        return states, last if page.get("has_more") is True else None

    def results(self, state: BatchState) -> Sequence[Ask]:
        return [Ask("GET", self.path(f"/files/{in_url(file)}/content")) for file in state.files]

    def reader(self, ask: Ask) -> ResultReader:
        return JsonLines(partial(result_of, self.dialect))

    def delete_file(self, file_id: str) -> Ask | None:
        return Ask("DELETE", self.path(f"/files/{in_url(file_id)}"))

    def endings(self) -> Mapping[str, bool]:
        return _ENDINGS

    def state_of(self, told: Mapping[str, Any]) -> BatchState | None:
        """Read a batch; None for what is none."""
        name, status = named(told.get("id")), text(told.get("status"))
        if name is None or status is None:
            return None
        problem, counts = first_of(mapping(told.get("errors")).get("data")), mapping(told.get("request_counts"))
        code, message = str(problem.get("code") or status), str(problem.get("message") or WHY)
        done, bad = whole(counts.get("completed")), whole(counts.get("failed"))
        return BatchState(
            id=name,
            status=status,
            ended=_ENDINGS.get(status, False),
            failed=(code, message) if status == "failed" else None,
            queue_full=status == "failed" and code in _QUEUE_FULL,
            key=text(mapping(told.get("metadata")).get(KEY_FIELD)),
            input_file=named(told.get("input_file_id")),
            files=names(told.get("output_file_id"), told.get("error_file_id")),
            created=unix(told.get("created_at")),
            expires=unix(told.get("expires_at")),
            total=whole(counts.get("total")) or None,  # zero until the file has been read
            finished=None if done is None and bad is None else (done or 0) + (bad or 0),
        )

    def endpoint_of(self, order: BatchOrder) -> str:
        """Return how a batch, and its lines, name the endpoint that they are for."""
        return f"/v1{endpoint_at(order.path)}"

    def path(self, path: str) -> str:
        """Return a path below the root as one below the base URL."""
        return self.dialect.root + path


class OpenAICompatibleBatches(OpenAIBatches):
    """Any other server that takes batches as OpenAI does: a gateway, or one that people run themselves.

    Nothing is taken for granted about it: it gives no discount, and need not end by itself.
    """

    dialect = OpenAICompatible()
    traits = BatchTraits(
        endpoints=OpenAIBatches.traits.endpoints,
        max_requests=50_000,
        max_bytes=100_000_000,
        price_factor=1.0,
        hard_expiry=None,
    )
