"""The places in pages where a figure stands: between two comments, its picture and its caption."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

__all__ = ["block", "names_in", "placed"]

_WIDTH = 115
_PLACE = re.compile(r"<!-- FIGURE ([\w-]+)[^>]*-->\n.*?<!-- END FIGURE -->", re.S)


def names_in(text: str) -> list[str]:
    """Return the figures that a page has a place for."""
    return _PLACE.findall(text)


def block(name: str, about: str, caption: str, folder: str) -> str:
    """Return what stands at a figure's place, on a page from which its picture is in ``folder``."""
    below = textwrap.fill(f"*{caption}*", _WIDTH, break_long_words=False, break_on_hyphens=False)
    return (
        f"<!-- FIGURE {name}: `make docs-plots` writes this -->\n"
        f"![{about}]({folder}/{name}.svg)\n\n{below}\n<!-- END FIGURE -->"
    )


def placed(page: Path, words: Mapping[str, tuple[str, str]], assets: Path) -> str:
    """Return the page with its figures' blocks made anew. ``words`` are (about, caption) by figure."""
    folder = os.path.relpath(assets, page.parent).replace(os.sep, "/")

    def made(place: re.Match[str]) -> str:
        name = place[1]
        return block(name, *words[name], folder) if name in words else place[0]

    return _PLACE.sub(made, page.read_text(encoding="utf-8"))
