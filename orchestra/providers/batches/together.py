"""Together's batches.

Sources: docs.together.ai, "Batch inference" and the reference of ``POST /files/upload``; together 3.1.1,
``types/batch_job.py``. A batch takes no key of ours, but tells of which file it was made, and a file is uploaded
for one batch alone: by that it is found again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar

from orchestra.call import read_json
from orchestra.providers.base import Endpoint, FormatError
from orchestra.providers.batches.base import Ask, BatchLine, BatchOrder, BatchState, BatchTraits
from orchestra.providers.batches.openai import OpenAIBatches
from orchestra.providers.batches.reading import (
    WHY,
    batch,
    batches,
    mapping,
    named,
    names,
    parse_object,
    text,
    unix,
)
from orchestra.providers.batches.writing import post_json, quoted, upload_file
from orchestra.providers.together import Together

__all__ = ["TogetherBatches"]

_ENDINGS = {
    "VALIDATING": False,
    "IN_PROGRESS": False,
    "COMPLETED": True,
    "FAILED": True,
    "EXPIRED": True,
    "CANCELLED": True,
}


class TogetherBatches(OpenAIBatches):
    """Together: files and paths as at OpenAI, other objects. Its list of batches is whole, and in no known
    order."""

    dialect = Together()
    traits: ClassVar[BatchTraits] = BatchTraits(
        endpoints=frozenset({Endpoint.CHAT}),
        max_requests=50_000,
        max_bytes=100_000_000,
        hard_expiry=None,
        carrier="file",
    )

    def line(self, order: BatchOrder, line: BatchLine) -> bytes:
        return b'{"custom_id":%b,"body":%b}\n' % (quoted(line.custom_id), line.body)

    def upload(self, order: BatchOrder, content: AsyncIterator[bytes], size: int) -> Ask:
        name = f"{order.key}.jsonl"
        fields = {"purpose": "batch-api", "file_name": name, "file_type": "jsonl"}
        return upload_file(self.path("/files/upload"), fields, name, content, size)

    def create(self, order: BatchOrder, content: str | AsyncIterator[bytes], size: int = 0) -> Ask:
        asked = {"input_file_id": content, "endpoint": self.endpoint_of(order), "completion_window": "24h"}
        return post_json(self.path("/batches"), asked, order.headers)

    def list(self, cursor: str | None) -> Ask:
        return Ask("GET", self.path("/batches"))

    def read(self, body: bytes) -> BatchState:
        told = parse_object(body)
        return batch(self.state_of(mapping(told.get("job")) or told))

    def read_list(self, body: bytes, cursor: str | None) -> tuple[Sequence[BatchState], str | None]:
        try:
            listed = read_json(body)
        except ValueError:
            raise FormatError("the answer is not JSON") from None
        return batches(listed, self.state_of), None

    def endings(self) -> Mapping[str, bool]:
        return _ENDINGS

    def state_of(self, told: Mapping[str, Any]) -> BatchState | None:
        name, status = named(told.get("id")), text(told.get("status"))
        if name is None or status is None:
            return None
        files = names(told.get("output_file_id"), told.get("error_file_id"))
        return BatchState(
            id=name,
            status=status,
            ended=_ENDINGS.get(status, False),
            failed=(status, text(told.get("error")) or WHY) if status == "FAILED" and not files else None,
            input_file=named(told.get("input_file_id")),
            files=files,
            created=unix(told.get("created_at")),
            expires=unix(told.get("job_deadline")),
        )
