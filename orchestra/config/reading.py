"""From a file, or a dict, to the settings; and what is wrong with them, in words."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from orchestra.config.section import Section, closest, nearest
from orchestra.config.settings import Config
from orchestra.errors import ConfigError

__all__ = ["default_config", "load_config", "parse_config"]


@cache
def default_config() -> Config:
    """Return what holds where no settings are given.

    ``local/smollm2`` is the small model in this process, and calls to known hosts are metered, with the caller's
    own key and without a limit of ours.
    """
    return parse_config(
        {"providers": {"openai": {"kind": "openai"}}, "local": {"smollm2": {"weights": "smollm2-135m"}}},
        source="defaults",
    )


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read a TOML file. Relative paths in it count from its folder.

    Raises ConfigError naming the file, the place in it and the remedy.
    """
    import tomllib  # settings may come as a dict as well

    file = Path(path)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; `orchestra init` writes one to start from") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not UTF-8; save it as UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply to be settings") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    return parse_config(data, source=str(file), folder=os.path.realpath(file.parent))


def parse_config(data: Mapping[str, Any], *, source: str = "config", folder: str | None = None) -> Config:
    """Check a dict with the keys of `orchestra.toml`. Raises ConfigError with every fault found.

    Relative paths count from ``folder``; without it from the folder that is current when a file is opened.
    """
    try:
        return Config.model_validate(dict(data), context={"folder": folder})
    except ValidationError as error:
        faults = _without_consequences(error.errors(include_url=False, include_input=False))
        raise ConfigError(f"{source}: " + "; ".join(map(_describe, faults))) from None


_WORDS = {
    "dict_type": "must be a section",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "missing": "is missing",
    "model_type": "must be a section",
    "string_too_short": "must not be empty",
    "string_type": "must be a string",
    "tuple_type": "must be a list",
}
"""What pydantic's types of faults mean to someone who writes TOML."""


def _without_consequences(faults: Sequence[Any]) -> list[Any]:
    """Return the faults, misspelt keys first, without the keys that are missing because they were misspelt."""
    unknown = [fault for fault in faults if fault["type"] == "extra_forbidden"]
    meant = set()
    for fault in unknown:
        *parents, key = fault["loc"]
        meant |= {(*parents, close) for close in closest(str(key), _known_keys(parents))}
    rest = [
        fault
        for fault in faults
        if fault not in unknown and not (fault["type"] == "missing" and fault["loc"] in meant)
    ]
    return unknown + rest


def _place(path: Sequence[Any]) -> str:
    """Write a path as TOML would: `providers.acme.limits[0]`, and `models."gpt-5.1"`."""
    place = ""
    for part in path:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part != "[key]":
            key = part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else f'"{part}"'
            place += f".{key}" if place else key
    return place


def _describe(fault: Any) -> str:
    where = _place(fault["loc"])
    if fault["type"] == "extra_forbidden":
        *parents, key = fault["loc"]
        return f"unknown key {where!r}" + nearest(str(key), _known_keys(parents))
    if fault["type"] == "tuple_type" and _known_keys(fault["loc"]):
        return f"{where}: must be a list of sections: write [[{where}]]"
    if fault["type"] in _WORDS:
        return f"{where}: {_WORDS[fault['type']]}"
    message = str(fault["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    return f"{where}: {message}" if where else message


def _known_keys(path: Sequence[Any]) -> list[str]:
    """Return the keys that are allowed in the section at ``path``."""
    place: Any = Config
    for part in path:
        section = _section_in(place)
        if section is place and part in section.model_fields:
            place = section.model_fields[part].annotation
        elif section is not None:  # a name in a table of sections, or a number in a list of them
            place = section
    section = _section_in(place)
    return [] if section is None else list(section.model_fields)


def _section_in(annotation: Any) -> type[Section] | None:
    """Return the section that a field holds: itself, or one by each name, or several."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for one in get_args(annotation) if (found := _section_in(one))), None)
