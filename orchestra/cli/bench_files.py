"""The files that ``orchestra bench`` leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra.errors import InputError
from orchestra.extras import install

__all__ = ["BenchFiles", "Leaves"]


@dataclass(frozen=True, slots=True)
class Leaves:
    """What a report can be written as: plain data, a page, and a picture, which is drawn into a file. There is no
    picture of nothing: None."""

    numbers: Callable[[], Mapping[str, Any]]
    page: Callable[[], str]
    picture: Callable[[Path], None] | None

    def save_numbers(self, path: Path) -> None:
        _save_text(json.dumps(self.numbers(), indent=1, ensure_ascii=False) + "\n", path)

    def save_page(self, path: Path) -> None:
        _save_text(self.page(), path)


@dataclass(frozen=True, slots=True)
class BenchFiles:
    """Numbers as ``json``, a page as ``html`` and a picture as ``png``; None is not wanted."""

    json: Path | None
    html: Path | None
    png: Path | None

    def check(self) -> None:
        """Raise InputError where one could not be written: better now than after the measuring."""
        from importlib.util import find_spec

        from orchestra.cli.settings import cannot_be_made

        if self.png is not None and find_spec("matplotlib") is None:
            raise InputError(f"--png needs matplotlib: {install('plot')}")
        for path in filter(None, (self.json, self.html, self.png)):
            if (why := cannot_be_made(path)) is not None:
                raise InputError(f"{path} cannot be made: {why}")
            if path.is_dir():
                raise InputError(f"{path} is a folder")
            if path.is_file():
                try:
                    path.open("ab").close()  # which changes nothing
                except OSError as error:
                    raise InputError(f"{path} cannot be written: {error.strerror}") from None

    def write(self, leaves: Leaves, say: Callable[[str], None]) -> bool:
        """Write them, each whatever becomes of the others. Returns whether all were."""
        whole = True
        for path, name, save in (
            (self.json, "numbers", leaves.save_numbers),
            (self.html, "report", leaves.save_page),
            (self.png, "picture", leaves.picture),
        ):
            if path is None or save is None:
                continue
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                save(path)
            except OSError as error:  # what was measured cost time and money
                say(f"{name:8} {path} was not written: {error.strerror or error}")
                whole = False
            else:
                say(f"{name:8} {path}")
        return whole


def _save_text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8", errors="replace")  # a surrogate must not cost the report
