"""Whether what a program has written is what a page shows."""

from __future__ import annotations

import re

_VARYING = re.compile(
    r"(?<![\w.-])(?:"
    r"[0-9a-f]{12,}"  # fingerprints
    r"|(?:batch|req)_\w+"
    r"|\$?\d[\d.,:-]*(?:(?:ms|[smhdkMG])\b(?:\d+[hms])*|[dh]\d+[hm]\b)?"
    r")(?![\w-])"
)


def shows(page: str, written: str, *, numbers_vary: bool = False) -> bool:
    """Return whether a page's block shows what was written.

    In the page a line of ``...`` stands for any lines. With ``numbers_vary`` numbers, dates, durations and
    identifiers match any others, and columns may be as wide as they need to be.
    """
    lines = [re.escape(line) for line in _lines(page, numbers_vary)]
    pattern = "".join(r"(?:.*\n)*?" if line == r"\.\.\." else rf"{line}\n" for line in lines)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _lines(written, numbers_vary))) is not None


def _lines(text: str, numbers_vary: bool) -> list[str]:
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return [" ".join(_VARYING.sub("#", line).split()) for line in lines] if numbers_vary else lines
