"""Times of day as they are written: ``09:20``."""

from __future__ import annotations

import re

__all__ = ["format_clock_time", "parse_clock_time"]

_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})")


def parse_clock_time(text: str) -> float:
    """Return the second of the day. Raises ValueError for what is no time of day; 24:00 is its end."""
    found = _TIME.fullmatch(text.strip())
    seconds = int(found[1]) * 3600 + int(found[2]) * 60 if found else -1
    if found is None or int(found[2]) >= 60 or seconds > 86_400:
        raise ValueError(f"{text[:20]!r} is no time of day, as 09:20")
    return float(seconds)


def format_clock_time(seconds: float) -> str:
    """Return a second as a time of day; from the second day on with the number of days that have passed."""
    days, rest = divmod(int(seconds), 86_400)
    return f"{f'{days}d ' if days else ''}{rest // 3600:02d}:{rest % 3600 // 60:02d}"
