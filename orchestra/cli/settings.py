"""The settings that a command goes by."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestra.config import Config

__all__ = ["DEFAULT_CONFIG", "cannot_be_made", "find_settings", "shown"]

DEFAULT_CONFIG = Path("orchestra.toml")


def find_settings(path: Path | None) -> tuple[Config, str]:
    """Return the settings, and where they are from in a few words.

    They are those of ``path``; without it those of orchestra.toml in this folder; without that the embedded ones.
    Raises ConfigError naming the file, the place in it and the remedy.
    """
    from orchestra.config import default_config, load_config

    if path is None and not DEFAULT_CONFIG.exists():
        models = ", ".join(f"local/{name}" for name in default_config().local)
        return (
            default_config(),
            f"no orchestra.toml here: embedded defaults, with the model {models} in this process",
        )
    file = path or DEFAULT_CONFIG
    return load_config(file), str(file)


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path as it is shortest to read: from the current folder where it is below that."""
    absolute, here = os.path.abspath(path), os.getcwd()
    return os.path.relpath(absolute, here) if absolute.startswith(os.path.join(here, "")) else absolute


def cannot_be_made(path: Path) -> str | None:
    """Return why a file that is missing could not be made at ``path``, with its folders; None where it could."""
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        return "one of its folders is a file"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    folder = next(parent for parent in path.absolute().parents if os.path.exists(parent))
    if not folder.is_dir():
        return f"{folder} is a file"
    try:
        tempfile.TemporaryFile(dir=folder).close()  # rights do not tell of all that refuses a file
    except OSError as error:
        return f"{folder} is not writable ({error.strerror})"
    return None
