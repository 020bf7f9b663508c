"""The settings that a command goes by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestra.config import Config

__all__ = ["find_settings"]

DEFAULT_CONFIG = Path("orchestra.toml")


def find_settings(path: Path | None) -> tuple[Config, str]:
    """Return the settings, and where they are from in a few words.

    They are those of ``path``; without it those of orchestra.toml in this folder; without that the embedded ones.
    Raises ConfigError naming the file, the place in it and the remedy.
    """
    from orchestra.client import DEFAULTS
    from orchestra.config import load_config

    if path is None and not DEFAULT_CONFIG.exists():
        models = ", ".join(f"local/{name}" for name in DEFAULTS.local)
        return DEFAULTS, f"no orchestra.toml here: embedded defaults, with the model {models} in this process"
    file = path or DEFAULT_CONFIG
    return load_config(file), str(file)
