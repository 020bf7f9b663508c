"""What the sections of the settings are made of."""

import os
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo

__all__ = ["FileName", "Price", "Rate", "Section", "Share", "anchored", "closest", "folder_of", "nearest"]


def _without_nul(name: str) -> str:
    if "\0" in name:
        raise ValueError("must be the name of a file, without a zero byte")
    return name


def folder_of(info: ValidationInfo) -> str | None:
    """Return the folder of the file that is read (the validation's context), or None where there is no file."""
    return (info.context or {}).get("folder")


def anchored(path: str, info: ValidationInfo) -> str:
    """Return ``path`` as it counts from the folder of the settings, and ``~`` from home.

    Without a file a relative path stays as it is, and so counts from the current folder.
    """
    path = os.path.expanduser(path)
    folder = folder_of(info)
    return path if folder is None else os.path.join(folder, path)


Rate = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Price = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False, strict=True)]
Share = Annotated[float, Field(ge=0, le=0.9, allow_inf_nan=False, strict=True)]
FileName = Annotated[str, Field(min_length=1), AfterValidator(_without_nul)]


class Section(BaseModel):
    """A table of the settings. It knows all its keys, and is not changed once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)  # importing builds nothing


def closest(word: str, known: Iterable[str], *, at_least: float = 0.6) -> list[str]:
    """Return the one of ``known`` that ``word`` most resembles, or nothing where it resembles none.

    ``at_least`` is how alike two words must be, from 0 to 1: difflib's ratio.
    """
    import difflib  # where something is wrong only

    return difflib.get_close_matches(word, list(known), n=1, cutoff=at_least)


def nearest(word: str, known: Any) -> str:
    """Return the end of a message about an unknown ``word``: what was meant, or what there is."""
    options = list(known)
    close = closest(word, options)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known here: {', '.join(sorted(options))}" if options else ""
