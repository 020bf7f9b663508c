"""Durations as people write them: ``90``, ``"90s"``, ``"15m"``, ``"24 hours"``, ``"1d12h"``, ``"250ms"``."""

from __future__ import annotations

import math
import re

__all__ = ["format_duration", "parse_duration"]

_SECONDS = {
    0.001: ("ms", "millisecond", "milliseconds"),
    1.0: ("s", "sec", "secs", "second", "seconds"),
    60.0: ("m", "min", "mins", "minute", "minutes"),
    3600.0: ("h", "hr", "hrs", "hour", "hours"),
    86400.0: ("d", "day", "days"),
}
_UNITS = {name: seconds for seconds, names in _SECONDS.items() for name in names}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)", re.ASCII)


def parse_duration(value: float | str, *, needs_unit: bool = False) -> float:
    """Return ``value`` in seconds. A bare number is seconds, or with ``needs_unit`` it is refused.

    Raises ValueError where it is not a duration, or not above zero.
    """
    seconds = _seconds(value, needs_unit)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"a duration must be above zero, not {value!r}")
    return seconds


def _seconds(value: float | str, needs_unit: bool) -> float:
    if isinstance(value, bool):
        raise ValueError(f"not a duration: {value!r}")
    if isinstance(value, int | float):
        return float(value)
    text = value.strip().lower()
    try:
        bare = float(text)
    except ValueError:
        pass
    else:
        if needs_unit and 0 < bare < math.inf:
            ways = ", ".join(f"{bare:g}{unit}" for unit in ("ms", "s", "m"))
            raise ValueError(f"{bare:g} has no unit, so it is no duration: write {ways} or {bare:g}h")
        return bare
    total, at = 0.0, 0
    while part := _PART.match(text, at):
        number, unit = part.groups()
        if unit not in _UNITS:
            break
        total, at = total + float(number) * _UNITS[unit], part.end()
    if not at or at < len(text):
        raise ValueError(f"not a duration: {value!r}; write it like 90s, 15m, 6h, 1d12h or 24 hours")
    return total


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
