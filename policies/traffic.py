"""The two traffic classes."""

from __future__ import annotations

import enum

__all__ = ["TrafficClass"]


class TrafficClass(enum.StrEnum):
    """Who waits for the answer: a person (``INTERACTIVE``) or nobody just now (``BULK``)."""

    INTERACTIVE = "interactive"
    BULK = "bulk"
