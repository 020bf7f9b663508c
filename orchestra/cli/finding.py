"""What ``orchestra doctor`` finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. ``remedy`` says what to do; it is empty where nothing need be done.

    ``fail``: something that this configuration needs does not work. ``warn``: it works, and could be better.
    """

    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""
