"""Durations that are given on the command line."""

from __future__ import annotations

from orchestra.durations import parse_duration
from orchestra.errors import InputError

__all__ = ["duration_option"]


def duration_option(option: str, text: str, *, bare: bool = False, least: float | None = None) -> float:
    """Return what ``option`` was given, in seconds.

    It needs a unit, since ``--deadline 24`` is thought of in hours by most; ``bare`` is for options that say what
    they count in. ``least`` allows what is not below that many seconds, zero included; without it all above zero.

    Raises InputError.
    """
    try:
        is_zero = least == 0 and float(text) == 0
    except ValueError:
        is_zero = False
    try:
        seconds = 0.0 if is_zero else parse_duration(text, needs_unit=not bare)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None
    if least is not None and seconds < least:
        raise InputError(f"{option}: must be {least:g}s or longer, not {text}")
    return seconds
