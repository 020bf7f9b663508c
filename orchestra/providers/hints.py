"""When a provider says to come back, in all the forms seen on the wire.

The rule for a bare number: below 1e9 it is relative seconds, from 1e9 unix time in seconds, from 1e12 unix time in
milliseconds. What is missing or cannot be parsed is unknown (None), never zero. All times are unix time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from orchestra.call import Headers, RateLimit

__all__ = ["demanded_wait", "parse_instant", "read_limits", "retry_after"]

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = r"\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h|d)"
_DURATION = re.compile(rf"(?:{_PART})+")
_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d)")
_IN_TEXT = re.compile(
    rf"(?:try again|retry|wait)(?: after| in| for)? ((?:{_PART})+|\d+(?:\.\d+)?(?= ?sec))", re.IGNORECASE
)
_LIMIT_HEADER = re.compile(
    r"(?:x-ratelimit|x-(?P<tokens>tokenlimit))-(?P<first>limit|remaining|reset)(?:-(?P<after>.+))?"
    r"|anthropic-ratelimit-(?P<before>.+)-(?P<last>limit|remaining|reset)"
)
_METRICS: Mapping[str, Literal["requests", "tokens", "input_tokens", "output_tokens"]] = {
    "requests": "requests",
    "req": "requests",
    "tokens": "tokens",
    "project-tokens": "tokens",
    "input-tokens": "input_tokens",
    "output-tokens": "output_tokens",
    "tokens-prompt": "input_tokens",
    "tokens-generated": "output_tokens",
}
_PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "month": 30 * 86400.0}
_PER_SECOND = frozenset({"tokens-prompt", "tokens-generated"})
"""What Fireworks tells is per second."""
_JSON_FIELDS = ("retry_after", "retry_after_seconds", "retryDelay")


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


def demanded_wait(headers: Headers, error: Mapping[str, Any], now: float) -> float | None:
    """Return the wait that an error answer asks for in so many words, in seconds; None where it asks for none.

    Read in this order: the headers ``retry-after-ms`` and ``retry-after``; a field of the error object; its
    message ("Please try again in 2.41s").
    """
    lines = dict(reversed(headers))
    milliseconds = _number(lines.get("retry-after-ms", ""))
    if milliseconds is not None and milliseconds >= 0:
        return milliseconds / 1000
    for hint in _hints(lines, error):
        seconds = parse_instant(hint, now)
        if seconds is not None:
            return seconds
    return None


def retry_after(headers: Headers, error: Mapping[str, Any], now: float) -> float | None:
    """Return `demanded_wait`, and where there is none the latest reset among the limits with nothing left."""
    demanded = demanded_wait(headers, error, now)
    if demanded is not None:
        return demanded
    spent = [parts for parts in _windows(headers).values() if _amount(parts.get("remaining")) == 0]
    resets = [_reset(parts, headers, now) for parts in spent]
    return max((reset for reset in resets if reset), default=None)


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


def read_limits(headers: Headers, now: float) -> list[RateLimit]:
    """Return what an answer tells about its account's limits. What means nothing to us is left out.

    Spellings: ``x-ratelimit-{part}-{metric}`` (OpenAI, Azure, Groq, Mistral, Fireworks),
    ``anthropic-ratelimit-{metric}-{part}`` (Anthropic), ``x-ratelimit-{part}`` together with
    ``x-tokenlimit-{part}`` (Together, per second). Windows are a minute unless the metric says otherwise, or the
    provider is known to mean something else.
    """
    names = {name for name, _ in headers}
    together = any(name.startswith("x-tokenlimit-") for name in names)
    groq = any(name.startswith("x-groq-") for name in names)
    anthropic = any(name.startswith("anthropic-ratelimit-") for name in names)
    found = []
    for spelling, parts in _windows(headers).items():
        word, _, period = spelling.rpartition("-")
        if period not in _PERIODS:
            word, period = spelling, "minute"
        if spelling in ("", "tokenlimit"):
            if not together:
                continue  # a gateway's own limit, of which nobody says what it counts
            word, period = "tokens" if spelling else "requests", "second"
        elif groq and spelling == "requests":
            period = "day"
        elif spelling in _PER_SECOND:
            period = "second"
        metric = _METRICS.get(word)
        limit = _amount(parts.get("limit"))
        remaining = _amount(parts.get("remaining"))
        if metric is None or (limit is None and remaining is None):
            continue
        name = "project_tokens" if word == "project-tokens" else metric
        found.append(
            RateLimit(
                metric,
                limit=limit or None,
                remaining=remaining,
                reset=_reset(parts, headers, now),
                window=_PERIODS[period],
                name=name if period == "minute" else f"{name}_per_{period}",
                resolution=1000.0 if anthropic and metric != "requests" else 1.0,
            )
        )
    return found


def _windows(headers: Headers) -> dict[str, dict[str, str]]:
    """Return the texts of ``limit``, ``remaining`` and ``reset`` by limit, as the provider spells it."""
    found: dict[str, dict[str, str]] = {}
    for name, value in headers:
        if match := _LIMIT_HEADER.fullmatch(name):
            spelling = "tokenlimit" if match["tokens"] else match["before"] or match["after"] or ""
            found.setdefault(spelling, {}).setdefault(match["first"] or match["last"], value)
    return found


def _reset(parts: Mapping[str, str], headers: Headers, now: float) -> float | None:
    """Return the seconds until the reset. A date is compared with the date of the answer, not with our clock."""
    if (text := parts.get("reset")) is None:
        return None
    said_at = _moment(next((value for name, value in headers if name == "date"), ""))
    return parse_instant(text, now if said_at is None else said_at.timestamp())


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
