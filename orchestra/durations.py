"""Durations as people write them: ``90``, ``"90s"``, ``"15m"``, ``"6h"``, ``"1d12h"``, ``"250ms"``."""

from __future__ import annotations

import math
import re

__all__ = ["format_duration", "parse_duration"]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration(value: float | str) -> float:
    """Return ``value`` in seconds. A bare number is seconds.

    Raises ValueError where it is not a duration, or not above zero.
    """
    seconds = _seconds(value)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"a duration must be above zero, not {value!r}")
    return seconds


def _seconds(value: float | str) -> float:
    if isinstance(value, bool):
        raise ValueError(f"not a duration: {value!r}")
    if isinstance(value, int | float):
        return float(value)
    text = value.strip().lower()
    try:
        return float(text)
    except ValueError:
        pass
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"not a duration: {value!r}; write it like 90s, 15m, 6h or 1d12h")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """Return ``seconds`` as a short text of at most two units: ``850ms``, ``12.3s``, ``4m05s``, ``6h30m``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours}h"
