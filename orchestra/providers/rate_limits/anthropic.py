"""Anthropic's limits: groups of models that share theirs, and groups of what else its API does.

Sources: platform.claude.com/docs, "Rate limits API", "Rate limits"; anthropic 2.14.0, ``types/organization/``
(``organization_rate_limit*.py``, ``rate_limit_list_params.py``, ``workspaces/workspace_rate_limit*.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestra.providers.base import FormatError
from orchestra.providers.batches.reading import mapping, parse_object, text
from orchestra.providers.batches.writing import in_url
from orchestra.providers.rate_limits.base import Key, LimitGroup, RateLimitApi, group_of

__all__ = ["AnthropicRateLimits"]

_PLACE = "/v1/organizations"
_KEYS = {
    "requests_per_minute": Key("requests_per_minute"),
    # what is read from the cache is free of it, and so it is in our count
    "input_tokens_per_minute_cache_aware": Key("input_tokens_per_minute"),
    "input_tokens_per_minute": Key(
        "input_tokens_per_minute", "it counts what is read from the cache too, which our count leaves out"
    ),
    "output_tokens_per_minute": Key("output_tokens_per_minute"),
    "tokens_per_minute": Key("tokens_per_minute"),
    "tokens_per_day": Key("tokens_per_day"),
}
_REASONS = {
    "fast_itpmca": "input tokens a minute of fast mode, which the settings do not tell apart",
    "fast_otpm": "output tokens a minute of fast mode, which the settings do not tell apart",
    "tool_uses_per_second": "uses of a tool are not counted",
    "enqueued_batch_requests": "it counts the requests of open batches; the settings can bound their tokens only",
}
_MODELS = "model_group"
_GROUPS = {
    "batch": ("Message Batches", "of the batch endpoint, whose own requests are not counted"),
    "token_count": ("Token counting", "of the counting of tokens, which is not counted itself"),
    "files": ("Files", "of the files endpoint, whose requests are not counted"),
    "skills": ("Skills", "of the skills endpoint, whose requests are not counted"),
    "web_search": ("Web search", "of the web search tool, whose uses are not counted"),
}


class AnthropicRateLimits(RateLimitApi):
    """An organization's limits, or with a scope those that hold in a workspace, inherited ones included."""

    key_variable = "ANTHROPIC_ADMIN_KEY"
    scope = "workspace"
    needs_scope = False

    def path(self, scope: str | None, cursor: str | None) -> str:
        part = "" if scope is None else f"/workspaces/{in_url(scope)}"
        query = [] if scope is None else ["include_inherited=true"]
        if cursor is not None:
            query.append(f"page={in_url(cursor)}")
        return f"{_PLACE}{part}/rate_limits" + (f"?{'&'.join(query)}" if query else "")

    def read(self, body: bytes) -> tuple[list[LimitGroup], str | None]:
        page = parse_object(body)
        listed = page.get("data")
        if not isinstance(listed, list):
            raise FormatError("the answer is no list of rate limits")
        return [_group(entry) for entry in listed], text(page.get("next_page"))


def _group(told: Any) -> LimitGroup:
    entry = mapping(told)
    group, listed = mapping(entry.get("group")), entry.get("models")
    kind = text(group.get("type")) or "nameless"
    usual, why = _GROUPS.get(kind, (kind, f"of the group {kind!r}, which this version does not know"))
    title = text(group.get("display_name")) or usual
    limits = list(_limits(entry.get("limits") if entry else told))
    models = tuple(name for one in listed if (name := text(one))) if isinstance(listed, list) else ()
    if kind == _MODELS and models:
        return group_of(title, models, limits, _KEYS, _REASONS, "a limit that this version does not know")
    if kind == _MODELS:
        why = "of a group that names no models"
    reasons = _REASONS if kind in _GROUPS else {}
    return group_of(title, (), limits, {}, reasons, why)


def _limits(listed: Any) -> Iterator[tuple[str, Any]]:
    """Yield each limit's type and value; of what is none, all there is."""
    for limit in listed if isinstance(listed, list) else [listed]:
        one = mapping(limit)
        if (name := text(one.get("type"))) is not None:
            yield name, one.get("value")
        else:
            yield "nameless", limit
