"""OpenAI's limits: those of a project, one entry a model.

Sources: its OpenAPI description, ``/organization/projects/{project_id}/rate_limits``; openai 3.57.0,
``types/admin/organization/projects/project_rate_limit.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestra.providers.base import FormatError
from orchestra.providers.batches.reading import mapping, parse_object, text
from orchestra.providers.batches.writing import in_url
from orchestra.providers.rate_limits.base import Key, LimitGroup, RateLimitApi, group_of

__all__ = ["OpenAIRateLimits"]

_PAGE = 100
_KEYS = {
    "max_requests_per_1_minute": Key("requests_per_minute"),
    "max_tokens_per_1_minute": Key("tokens_per_minute"),
    "max_requests_per_1_day": Key("requests_per_day"),
    "batch_1_day_max_input_tokens": Key(
        "enqueued_batch_tokens", "it counts a day's batches, where the setting counts those that are open"
    ),
}
_REASONS = {
    "max_images_per_1_minute": "images are not counted",
    "max_audio_megabytes_per_1_minute": "audio is not counted",
}
_NO_LIMITS = frozenset({"object", "id", "model"})


class OpenAIRateLimits(RateLimitApi):
    """A project's limits. Which models share one is not told; what they share, the answers' headers tell."""

    key_variable = "OPENAI_ADMIN_KEY"
    scope = "project"
    needs_scope = True

    def path(self, scope: str | None, cursor: str | None) -> str:
        after = "" if cursor is None else f"&after={in_url(cursor)}"
        return f"/organization/projects/{in_url(scope or '')}/rate_limits?limit={_PAGE}{after}"

    def read(self, body: bytes) -> tuple[list[LimitGroup], str | None]:
        page = parse_object(body)
        listed = page.get("data")
        if not isinstance(listed, list):
            raise FormatError("the answer is no list of rate limits")
        return [_group(entry) for entry in listed], _cursor(page, listed)


def _cursor(page: Mapping[str, Any], entries: list[Any]) -> str | None:
    if page.get("has_more") is not True:
        return None
    last = text(page.get("last_id")) or (text(mapping(entries[-1]).get("id")) if entries else None)
    if last is None:
        raise FormatError("the answer says that there is more, and not where")
    return last


def _group(told: Any) -> LimitGroup:
    entry = mapping(told)
    model = text(entry.get("model"))
    limits = [(name, value) for name, value in entry.items() if name not in _NO_LIMITS and value is not None]
    if model is None:
        limits = limits or [("nameless", told)]
        return group_of("nameless", (), limits, {}, {}, "of an entry that names no model")
    return group_of(model, (model,), limits, _KEYS, _REASONS, "a limit that this version does not know")
