"""Values of a model file's metadata, each checked before it is used: the file is untrusted."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

__all__ = ["DAMAGED", "Fields"]

DAMAGED = "the file is damaged or incomplete, download it again"


class Fields:
    """Reads ``values`` by key; an absent one and None are the same. Raises ValueError (fault and remedy)."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def integer(self, key: str, *, most: int, least: int = 1, default: int | None = None) -> int:
        value = self._required(key, default)
        if isinstance(value, array | list):
            raise ValueError(f"{key} differs from layer to layer, which is not supported; choose a plain model")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{key} is {_shown(value)}, not a whole number from {least} to {most}; {DAMAGED}")
        return value

    def real(self, key: str, least: float, most: float, *, default: float | None = None) -> float:
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:  # NaN, too
            raise ValueError(f"{key} is {_shown(value)}, not a number from {least:g} to {most:g}; {DAMAGED}")
        return float(value)

    def optional_real(self, key: str, least: float, most: float) -> float | None:
        return None if self._values.get(key) is None else self.real(key, least, most)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{key} is {_shown(value)}, neither true nor false; {DAMAGED}")
        return value

    def text(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is None or isinstance(value, str):
            return value
        raise ValueError(f"{key} is not a text; {DAMAGED}")

    def items(self, key: str) -> list[object] | None:
        value = self._values.get(key)
        if value is None or isinstance(value, list):
            return value
        raise ValueError(f"{key} is {_shown(value)}, not a list; {DAMAGED}")

    def within(self, key: str) -> Fields | None:
        """The fields of an object inside this one."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ValueError(f"{key} is {_shown(value)}, not an object; {DAMAGED}")
        return Fields(value)

    def _required(self, key: str, default: object) -> object:
        value = self._values.get(key)
        value = default if value is None else value
        if value is None:
            raise ValueError(f"it has no {key}; use a complete model file")
        return value


def _shown(value: object) -> str:
    return repr(value)[:60]
