"""The files that ``orchestra bench`` leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.errors import InputError

if TYPE_CHECKING:
    from orchestra.bench.report.report import Report

__all__ = ["BenchFiles"]


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
            raise InputError('--png needs matplotlib: pip install "orchestra-llm[plot]"')
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

    def write(self, report: Report, say: Callable[[str], None]) -> bool:
        """Write them, each whatever becomes of the others. Returns whether all were."""
        whole = True
        for path, name, save in (
            (self.json, "numbers", _save_numbers),
            (self.html, "report", _save_page),
            (self.png if report.points else None, "picture", _save_picture),
        ):
            if path is None:
                continue
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                save(report, path)
            except OSError as error:  # what was measured cost time and money
                say(f"{name:8} {path} was not written: {error.strerror or error}")
                whole = False
            else:
                say(f"{name:8} {path}")
        return whole


def _save_numbers(report: Report, path: Path) -> None:
    _save_text(json.dumps(report.as_dict(), indent=1, ensure_ascii=False) + "\n", path)


def _save_page(report: Report, path: Path) -> None:
    from orchestra.bench.report.page import page

    _save_text(page(report), path)


def _save_text(text: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8", errors="replace")  # a surrogate must not cost the report


def _save_picture(report: Report, path: Path) -> None:
    from orchestra.bench.report.picture import save_picture

    save_picture(report, path)
