"""What a rate-limit API tells, in the words of the settings. One subclass a provider, without I/O or state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

__all__ = ["Key", "LimitGroup", "RateLimitApi", "Remark", "group_of"]


class Key(NamedTuple):
    """The key of ``[[providers.NAME.limits]]`` that says a limit, and in what it says something else, if in
    anything."""

    name: str
    differs: str = ""


@dataclass(frozen=True, slots=True)
class Remark:
    """What is to be said about one limit. ``limit`` and ``value`` are the provider's own.

    ``setting`` is the key that it was written under; None where no key says it, or it is written under none.
    """

    limit: str
    value: Any
    why: str
    setting: str | None = None


@dataclass(frozen=True, slots=True)
class LimitGroup:
    """What ``models`` share; where these are none, the limits are of something else than calls to a model.

    ``settings`` are limits by the keys of `LimitsConfig`. Every limit that the provider told is among them, or in
    the ``remarks``, or in both.
    """

    name: str
    models: tuple[str, ...]
    settings: Mapping[str, int]
    remarks: tuple[Remark, ...]


class RateLimitApi(ABC):
    """Where an account's limits are read, and how."""

    key_variable: ClassVar[str]
    """The environment variable in which the official SDK looks for an administrator's key."""
    scope: ClassVar[str]
    """The provider's word for a part of an account that has limits of its own."""
    needs_scope: ClassVar[bool]
    """Whether only such parts have limits that can be read."""

    @abstractmethod
    def path(self, scope: str | None, cursor: str | None) -> str:
        """Return the path of a page, below the account's base URL and with its query; the first has no cursor."""

    @abstractmethod
    def read(self, body: bytes) -> tuple[list[LimitGroup], str | None]:
        """Read a page: its groups, and the cursor of the next page, None after the last. Raises FormatError."""


def group_of(
    name: str,
    models: tuple[str, ...],
    told: Iterable[tuple[str, Any]],
    keys: Mapping[str, Key],
    reasons: Mapping[str, str],
    otherwise: str,
) -> LimitGroup:
    """Sort limits, each by the provider's word for it, into what the settings can say and what they cannot.

    ``reasons`` say why a limit has none of the ``keys``, and ``otherwise`` why one has not that is in neither.
    """
    settings: dict[str, int] = {}
    remarks: list[Remark] = []
    for limit, value in told:
        key = keys.get(limit)
        if key is None:
            remarks.append(Remark(limit, value, reasons.get(limit, otherwise)))
        elif isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            remarks.append(Remark(limit, value, "not a whole number above 0"))
        elif key.name in settings:
            settings[key.name] = min(value, settings[key.name])
            why = f"of several under {key.name} the lowest is set"
            remarks.append(Remark(limit, value, f"{key.differs}; {why}" if key.differs else why, key.name))
        else:
            settings[key.name] = value
            if key.differs:
                remarks.append(Remark(limit, value, key.differs, key.name))
    return LimitGroup(name, models, settings, tuple(remarks))
