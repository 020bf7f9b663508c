"""A model from its path, of either kind: a GGUF file, or a folder as hubs publish it."""

from __future__ import annotations

from pathlib import Path

from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.weights.files import ModelFiles, Placing

__all__ = ["load_model", "read_spec"]


def load_model(path: Path, placing: Placing | None = None) -> ModelFiles:
    """Read a whole model into memory as float32, or where ``placing`` puts it. Raises ModelFileError."""
    if path.is_dir():
        from orchestra.localengine.weights.hub import load_hub_folder

        return load_hub_folder(path, placing)
    from orchestra.localengine.weights.gguf import load_gguf

    return load_gguf(path, placing)


def read_spec(path: Path) -> ModelSpec:
    """The model's shape, without reading its weights. Raises ModelFileError."""
    if path.is_dir():
        from orchestra.localengine.weights.hub import read_hub_spec

        return read_hub_spec(path)
    from orchestra.localengine.weights.gguf import read_gguf_spec

    return read_gguf_spec(path)
