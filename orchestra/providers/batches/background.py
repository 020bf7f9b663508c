"""OpenAI's responses that are made in the background within a window: sooner than a batch, and dearer.

Each is a batch of one line, whose creation is an ordinary call: it counts against the account's ordinary limits,
and takes no room in the queue of batches. The answer to a look at it is its result, too.

Sources: the guide "Background mode" of platform.openai.com/docs; openai 3.57.0, ``types/responses``:
``response_create_params.py`` (``background_options``; with a window only in the standard tier, and unstreamed),
``response_status.py``, ``response_error.py``. 2 h are 30 % cheaper, 8 h 40 % (changelog of openai 3.53.0).

There is no list of them. So one whose creation was asked for, and of whose answer we did not live to hear, is not
found again: it is asked for once more, and both may be paid.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from orchestra.call import read_json
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
    JsonObject,
    answered,
    batch,
    failed,
    mapping,
    named,
    parse_object,
    text,
    unix,
)
from orchestra.providers.batches.writing import in_url, post_line
from orchestra.providers.faults import as_error
from orchestra.providers.openai import OpenAI

__all__ = ["BACKGROUNDS", "LINE_FIELD", "Background2Hours", "Background8Hours"]

LINE_FIELD = "orchestra_line"
"""The field of a response's metadata that holds the line's ``custom_id``."""

_HOUR = 3600.0
_PLACE = "/responses"
_MOST_METADATA = 16
_ENDINGS = {
    "queued": False,
    "in_progress": False,
    "completed": True,
    "incomplete": True,
    "failed": True,
    "cancelled": True,
}
_ANSWERED = frozenset({"completed", "incomplete"})
_REFUSED = frozenset(
    {
        "bio_policy",
        "data_residency_mismatch",
        "empty_image_file",
        "image_content_policy_violation",
        "image_file_not_found",
        "image_file_too_large",
        "image_parse_error",
        "image_too_large",
        "image_too_small",
        "invalid_base64_image",
        "invalid_image",
        "invalid_image_format",
        "invalid_image_mode",
        "invalid_image_url",
        "invalid_prompt",
        "misalignment_policy_violation",
        "unsupported_image_media_type",
    }
)
"""Codes of a response that failed by its request's fault: all but those of the server, of limits, and of what
could not be fetched."""
_OURS = ("background", "background_options")
_STANDARD = (None, "auto", "default")
_TRAITS = BatchTraits(
    endpoints=frozenset({Endpoint.RESPONSES}),
    max_requests=1,
    max_bytes=50_000_000,
    hard_expiry=None,
    keeps_finished=False,
    cancelling=60.0,
    carrier="none",
    creations=16,
    looks_per_second=10.0,
    max_open=5_000,
)
"""A cancelled response brings nothing. Looked at ten times a second, five thousand are each looked at every eight
minutes or so; what ends in between, just when its line has to go another way, is paid twice."""


class _Background(BatchForm):
    """A response in the background, to be there within the first of its ``windows``.

    What a caller wants that cannot be had so rides nowhere: a response that is not to be stored, one in another
    service tier, or with the metadata full.
    """

    dialect = OpenAI()
    takes_files = False
    via = "background"
    is_call = True
    window: ClassVar[str]
    """The window in the provider's words."""

    def takes(self, payload: Mapping[str, Any]) -> bool:
        metadata = payload.get("metadata")
        return (
            not payload.get("stream")
            and payload.get("store") is not False
            and payload.get("service_tier") in _STANDARD
            and not any(name in payload for name in _OURS)
            and (metadata is None or _has_room(metadata))
        )

    def is_unknown(self, message: str) -> bool:
        return "background" in message or "completion_window" in message

    def line(self, order: BatchOrder, line: BatchLine) -> bytes:
        payload = read_json(line.body)
        asked = {
            **payload,
            "background": True,
            "background_options": {"completion_window": self.window},
            "store": True,
            "service_tier": "default",  # or the project's own default would count
            "metadata": {**(payload.get("metadata") or {}), LINE_FIELD: line.custom_id},
        }
        return json.dumps(asked, separators=(",", ":")).encode() + b"\n"

    def create(self, order: BatchOrder, content: str | AsyncIterator[bytes], size: int = 0) -> Ask:
        if isinstance(content, str):
            raise TypeError("its request, not a file's id, is what a response is created of")
        return post_line(self.dialect.root + _PLACE, content, size, order.headers)

    def poll(self, batch_id: str) -> Ask:
        return Ask("GET", self._place_of(batch_id))

    def cancel(self, batch_id: str) -> Ask:
        return Ask("POST", f"{self._place_of(batch_id)}/cancel")

    def list(self, cursor: str | None) -> Ask:
        raise TypeError("responses cannot be listed")

    def read(self, body: bytes) -> BatchState:
        return batch(_state(parse_object(body)))

    def read_list(self, body: bytes, cursor: str | None) -> tuple[Sequence[BatchState], str | None]:
        raise TypeError("responses cannot be listed")

    def results(self, state: BatchState) -> Sequence[Ask]:
        return [self.poll(state.id)] if state.ended and state.status != "cancelled" else []

    def reader(self, ask: Ask) -> ResultReader:
        return JsonObject(self._result)

    def endings(self) -> Mapping[str, bool]:
        return _ENDINGS

    def _place_of(self, name: str) -> str:
        return f"{self.dialect.root}{_PLACE}/{in_url(name)}"

    def _result(self, told: Mapping[str, Any]) -> LineResult | None:
        metadata = dict(mapping(told.get("metadata")))
        custom_id, status = named(metadata.pop(LINE_FIELD, None)), text(told.get("status"))
        if custom_id is None or status is None:
            return None
        if status in _ANSWERED:
            return answered(custom_id, {**told, "metadata": metadata})
        if status != "failed":
            return LineResult(custom_id, "unserved", code=status)
        error = as_error(told.get("error"))
        return failed(self.dialect, custom_id, error, status=400 if error.get("code") in _REFUSED else None)


class Background8Hours(_Background):
    """Within eight hours."""

    traits = replace(_TRAITS, windows=(8 * _HOUR,), price_factor=0.6)
    label = "background 8h"
    window = "8h"


class Background2Hours(_Background):
    """Within two hours."""

    traits = replace(_TRAITS, windows=(2 * _HOUR,), price_factor=0.7)
    label = "background 2h"
    window = "2h"


BACKGROUNDS: Mapping[str, type[BatchForm]] = {form.window: form for form in (Background8Hours, Background2Hours)}
"""The forms by the provider's word for their window."""


def _has_room(metadata: Any) -> bool:
    return isinstance(metadata, Mapping) and len(metadata) < _MOST_METADATA and LINE_FIELD not in metadata


def _state(told: Mapping[str, Any]) -> BatchState | None:
    name, status = named(told.get("id")), text(told.get("status"))
    if name is None or status is None:
        return None
    return BatchState(
        id=name,
        status=status,
        ended=_ENDINGS.get(status, False),
        created=unix(told.get("created_at")),
        total=1,
        finished=int(status in _ANSWERED),
    )
