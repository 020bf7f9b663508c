"""Docstrings as Markdown, for the reference: an extension of griffe, which mkdocstrings reads the code with.

Ours are plain text with two marks of reStructuredText: a paragraph that ends in two colons stands before code, and
lines that begin with a name in double backticks and a colon explain one field each. The first would show its
colons, and the second run together into one paragraph.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["MarkdownDocstrings", "as_markdown"]

_FIELD = re.compile(r"``[\w.]+``(?:(?:, | and )``[\w.]+``)*(?:, [^:`]{1,30}| \([^:]{1,60}\))?: ")


def as_markdown(docstring: str) -> str:
    """Return the docstring, indented as it is in no source, as Markdown means it."""
    return "\n\n".join(
        block for part in docstring.split("\n\n") if (block := _paragraph(part.strip("\n"))) is not None
    )


def _paragraph(text: str) -> str | None:
    if text.startswith("    "):
        return text
    lines = text.split("\n")
    if any(map(_FIELD.match, lines)):
        text = "\n".join(_items(lines))
    if text == "::":
        return None
    return text[:-1] if text.endswith("::") else text


def _items(lines: list[str]) -> list[str]:
    """Return lines with each field as an item of a list; what stands before the first stays a paragraph."""
    items: list[str] = []
    within = False
    for line in lines:
        if _FIELD.match(line):
            if items and not within:
                items.append("")
            within = True
            items.append(f"- {line}")
        else:
            items.append(f"    {line}" if within else line)
    return items


class MarkdownDocstrings(griffe.Extension):
    """Hands every docstring on as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_others: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
