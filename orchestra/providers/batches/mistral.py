"""Mistral's batches.

Sources: docs.mistral.ai, "Batch inference" and "Known limitations" (requests and bytes of a batch); mistralai
3.7.0, ``client/models/batchjob.py``, ``client/models/createbatchjobrequest.py``, ``client/jobs.py``.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar

from orchestra.providers.base import Endpoint
from orchestra.providers.batches.base import Ask, BatchLine, BatchOrder, BatchState, BatchTraits
from orchestra.providers.batches.openai import KEY_FIELD, OpenAIBatches
from orchestra.providers.batches.reading import (
    WHY,
    batches,
    first_of,
    mapping,
    named,
    names,
    parse_object,
    text,
    unix,
    whole,
)
from orchestra.providers.batches.writing import post_json, quoted
from orchestra.providers.mistral import Mistral

__all__ = ["MistralBatches"]

_ENDINGS = {
    "QUEUED": False,
    "RUNNING": False,
    "CANCELLATION_REQUESTED": False,
    "SUCCESS": True,
    "FAILED": True,
    "TIMEOUT_EXCEEDED": True,
    "CANCELLED": True,
}
_PAGE = 100


class MistralBatches(OpenAIBatches):
    """Mistral: files as at OpenAI, and jobs on them, each for one model, with a time limit in hours."""

    dialect = Mistral()
    traits: ClassVar[BatchTraits] = BatchTraits(
        endpoints=frozenset({Endpoint.CHAT, Endpoint.EMBEDDINGS}),
        max_requests=100_000,
        max_bytes=500_000_000,
    )
    place = "/batch/jobs"

    def line(self, order: BatchOrder, line: BatchLine) -> bytes:
        return b'{"custom_id":%b,"body":%b}\n' % (quoted(line.custom_id), line.body)

    def create(self, order: BatchOrder, content: str | AsyncIterator[bytes], size: int = 0) -> Ask:
        asked = {
            "input_files": [content],
            "endpoint": self.endpoint_of(order),
            "model": order.model,
            "metadata": {KEY_FIELD: order.key},
            "timeout_hours": max(1, math.ceil(order.window / 3600)),
        }
        return post_json(self.path(self.place), asked, order.headers)

    def list(self, cursor: str | None) -> Ask:
        return Ask("GET", self.path(f"{self.place}?page={cursor or 0}&page_size={_PAGE}&order_by=-created"))

    def read_list(self, body: bytes, cursor: str | None) -> tuple[Sequence[BatchState], str | None]:
        page = parse_object(body)
        states = batches(page.get("data") or [], self.state_of)
        more = (whole(page.get("total")) or 0) > (int(cursor or 0) + 1) * _PAGE
        return states, str(int(cursor or 0) + 1) if more and states else None

    def state_of(self, told: Mapping[str, Any]) -> BatchState | None:
        name, status = named(told.get("id")), text(told.get("status"))
        if name is None or status is None:
            return None
        files = names(told.get("output_file"), told.get("error_file"))
        inputs = told.get("input_files")
        why = text(first_of(told.get("errors")).get("message")) or WHY
        return BatchState(
            id=name,
            status=status,
            ended=_ENDINGS.get(status, False),
            failed=(status, why) if status == "FAILED" and not files else None,
            key=text(mapping(told.get("metadata")).get(KEY_FIELD)),
            input_file=next(iter(names(*inputs)), None) if isinstance(inputs, Sequence) else None,
            files=files,
            created=unix(told.get("created_at")),
            total=whole(told.get("total_requests")) or None,
            finished=whole(told.get("completed_requests")),
        )

    def endings(self) -> Mapping[str, bool]:
        return _ENDINGS
