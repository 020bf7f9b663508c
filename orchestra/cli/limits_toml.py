"""Limits that a provider told, as sections of the settings that can be pasted as they are. Pure."""

from __future__ import annotations

import glob
import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestra.providers.rate_limits import LimitGroup, Remark

__all__ = ["as_plain", "as_toml"]

_WIDTH = 115
_LONGEST_VALUE = 80


def as_toml(provider: str, groups: Sequence[LimitGroup], source: str) -> str:
    """Return ``[[providers.NAME.limits]]`` for each group that the settings can hold, and a comment for the rest.

    ``source`` says who told them, and when.
    """
    section = f"[[providers.{_key(provider)}.limits]]"
    head = f"{source}. Put this in place of every {section} that is there: the first that matches a model counts."
    parts = [list(_comment(head))]
    parts += [[*_group(section, group)] for group in groups]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def as_plain(provider: str, groups: Sequence[LimitGroup]) -> dict[str, Any]:
    """Return the same as values that JSON has. Each of ``limits`` is a section by its keys."""
    return {
        "provider": provider,
        "limits": [{"models": _patterns(group), **group.settings} for group in groups if group.settings],
        "remarks": [
            {
                "group": group.name,
                "models": list(group.models),
                "limit": remark.limit,
                "value": remark.value,
                "setting": remark.setting,
                "why": remark.why,
            }
            for group in groups
            for remark in group.remarks
        ],
    }


def _group(section: str, group: LimitGroup) -> Iterator[str]:
    if group.models != (group.name,) or not group.settings:
        yield from _comment(group.name)
    if group.settings:
        yield section
        yield f"models = [{', '.join(_text(pattern) for pattern in _patterns(group))}]"
        yield from (f"{key} = {value:_}" for key, value in group.settings.items())
    for remark in group.remarks:
        yield from _comment(_told(remark))


def _told(remark: Remark) -> str:
    limit = f"{remark.limit} = {_value(remark.value)}"
    if remark.setting is None:
        return f"left out: {limit} ({remark.why})"
    return f"{remark.setting}: told as {limit} ({remark.why})"


def _patterns(group: LimitGroup) -> list[str]:
    """Return the names of the models as ``models`` takes them: a pattern fits its own name only."""
    return [glob.escape(name) for name in group.models]


def _comment(said: str) -> Iterator[str]:
    """Yield lines of comment. What a provider said can end none of them."""
    said = "".join(sign if sign.isprintable() else " " for sign in said)
    yield from textwrap.wrap(
        said, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_long_words=False, break_on_hyphens=False
    )


def _value(value: Any) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:_}" if whole else textwrap.shorten(json.dumps(value), _LONGEST_VALUE, placeholder=" ...")


def _text(word: str) -> str:
    """Return a string as TOML writes it: as JSON does, but for one control character."""
    return json.dumps(word, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)
