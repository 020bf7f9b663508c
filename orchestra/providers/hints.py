"""When a provider says to come back, in all the forms seen on the wire.

The rule for a bare number: below 1e9 it is relative seconds, from 1e9 unix time in seconds, from 1e12 unix time in
milliseconds. What is missing or cannot be parsed is unknown (None), never zero. All times are unix time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from orchestra.call import Headers

__all__ = ["Window", "parse_instant", "read_windows", "retry_after"]

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = r"\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h|d)"
_DURATION = re.compile(rf"(?:{_PART})+")
_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d)")
_IN_TEXT = re.compile(
    rf"(?:try again|retry|wait)(?: after| in| for)? ((?:{_PART})+|\d+(?:\.\d+)?(?= ?sec))", re.IGNORECASE
)
_JSON_FIELDS = ("retry_after", "retry_after_seconds", "retryDelay")


@dataclass(frozen=True, slots=True)
class Window:
    """What headers tell about one limit: ``metric`` as the provider spells it, ``reset`` in seconds from now."""

    metric: str
    limit: float | None
    remaining: float | None
    reset: float | None


def parse_instant(text: str, now: float) -> float | None:
    """Return the seconds from ``now`` that ``text`` means, not below zero; None where it means nothing."""
    text = text.strip()
    number = _number(text)
    if number is not None:
        if number >= 1e12:
            return max(0.0, number / 1000 - now)
        if number >= 1e9:
            return max(0.0, number - now)
        return number if number >= 0 else None
    if _DURATION.fullmatch(text):
        seconds = sum(float(amount) * _UNITS[unit] for amount, unit in _PARTS.findall(text))
        return seconds if math.isfinite(seconds) else None
    moment = _moment(text)
    return None if moment is None else max(0.0, moment.timestamp() - now)


def retry_after(headers: Headers, error: Mapping[str, Any], now: float) -> float | None:
    """Return the wait that an error answer demands, in seconds; None where it demands none.

    Read in this order: the headers ``retry-after-ms`` and ``retry-after``; a field of the error object; its
    message ("Please try again in 2.41s"); the latest reset among the limits that have nothing left.
    """
    lines = dict(reversed(headers))
    milliseconds = _number(lines.get("retry-after-ms", ""))
    if milliseconds is not None and milliseconds >= 0:
        return milliseconds / 1000
    for hint in _hints(lines, error):
        seconds = parse_instant(hint, now)
        if seconds is not None:
            return seconds
    resets = [window.reset for window in read_windows(headers, now) if window.remaining == 0 and window.reset]
    return max(resets, default=None)


def _hints(lines: Mapping[str, str], error: Mapping[str, Any]) -> Iterator[str]:
    if "retry-after" in lines:
        yield lines["retry-after"]
    for field in _JSON_FIELDS:
        value = error.get(field)
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            yield str(value)
    match = _IN_TEXT.search(str(error.get("message", "")))
    if match:
        yield match[1]


def read_windows(headers: Headers, now: float) -> list[Window]:
    """Return what ``x-ratelimit-{limit,remaining,reset}-METRIC`` headers tell, one entry a metric."""
    found: dict[str, dict[str, str]] = {}
    for name, value in headers:
        for part in ("limit", "remaining", "reset"):
            metric = name.removeprefix(f"x-ratelimit-{part}-")
            if metric and metric != name:
                found.setdefault(metric, {})[part] = value
    return [
        Window(
            metric,
            limit=_amount(values.get("limit")),
            remaining=_amount(values.get("remaining")),
            reset=parse_instant(values["reset"], now) if "reset" in values else None,
        )
        for metric, values in found.items()
    ]


def _amount(text: str | None) -> float | None:
    """Return a count, or None: some providers send -1 for one they do not know."""
    number = None if text is None else _number(text)
    return number if number is not None and number >= 0 else None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
