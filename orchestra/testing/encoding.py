"""JSON encoders that are made once: the standard library makes one for every value, which takes as long as all
else that a line of a batch needs."""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable
from typing import Any

__all__ = ["canonical", "compact", "quoted", "spaced"]

quoted: Callable[[str], str] = json.encoder.encode_basestring_ascii
"""Return a string as JSON."""


def _encoder(separators: tuple[str, str], *, sort_keys: bool) -> Callable[[Any], str]:
    usual = json.JSONEncoder(separators=separators, sort_keys=sort_keys, check_circular=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return usual.encode
    parts = make(None, usual.default, quoted, None, separators[1], separators[0], sort_keys, False, True)

    def encode(value: Any) -> str:
        return quoted(value) if isinstance(value, str) else "".join(parts(value, 0))

    return encode


compact = _encoder((",", ":"), sort_keys=False)
"""Return a value as JSON without a blank."""

canonical = _encoder((",", ":"), sort_keys=True)
"""Return a value as JSON that is the same for equal values."""

spaced = _encoder((", ", ": "), sort_keys=False)
"""Return a value as JSON as `json.dumps` writes it."""
