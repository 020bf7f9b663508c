"""What is planned for: the shape of a model, from its file or by its name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.errors import InputError

if TYPE_CHECKING:
    from orchestra.localengine.models.spec import ModelSpec

__all__ = ["SHAPES", "read_model"]

_MOST_BYTES = 1 << 20  # of a config.json, which has a few thousand


def _shape(
    family: str,
    layers: int,
    hidden: int,
    mlp: int,
    heads: tuple[int, int, int],
    vocab: int,
    context: int,
    tied: bool,
) -> Mapping[str, object]:
    """What a published config.json says; ``heads`` are those of queries, of keys, and the numbers of each."""
    return {
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
        "sliding_window": None,
    }


SHAPES: Mapping[str, Mapping[str, object]] = {
    "smollm2-135m": _shape("llama", 30, 576, 1536, (9, 3, 64), 49_152, 8192, True),
    "llama-3.2-1b": _shape("llama", 16, 2048, 8192, (32, 8, 64), 128_256, 131_072, True),
    "llama-3.2-3b": _shape("llama", 28, 3072, 8192, (24, 8, 128), 128_256, 131_072, True),
    "llama-3.1-8b": _shape("llama", 32, 4096, 14_336, (32, 8, 128), 128_256, 131_072, False),
    "llama-3.1-70b": _shape("llama", 80, 8192, 28_672, (64, 8, 128), 128_256, 131_072, False),
    "qwen3-8b": _shape("qwen3", 36, 4096, 12_288, (32, 8, 128), 151_936, 40_960, False),
    "mistral-7b": _shape("mistral", 32, 4096, 14_336, (32, 8, 128), 32_768, 32_768, False),
}
"""Well-known models by name: of their published config.json what memory and speed depend on. Mistral's is v0.3."""


def read_model(model: str) -> tuple[str, ModelSpec]:
    """The name and the shape of ``model``: a name of `SHAPES`, a config.json, a .gguf file, or a model's folder.

    Only headers are read. Raises InputError where it is none of these, and ModelFileError for a faulty file.
    """
    from orchestra.localengine.weights.hub_config import spec_of_config
    from orchestra.localengine.weights.opening import read_spec

    name = model.strip().lower()
    if name in SHAPES:
        return name, spec_of_config(SHAPES[name])
    try:
        path = Path(model).expanduser()
        if path.is_dir():
            path /= "config.json"
        is_file = path.is_file()
    except (OSError, RuntimeError) as error:  # a name that is too long, a folder that is closed, ~nobody
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{model[:80]!r} cannot be read: {why}") from None
    if path.suffix == ".json":
        try:
            return path.resolve().parent.name, spec_of_config(_config(path))
        except ValueError as error:
            raise InputError(f"{path} cannot be planned for: {error}") from None
    if is_file:
        return path.resolve().name.removesuffix(".gguf"), read_spec(path)
    close = difflib.get_close_matches(name, SHAPES, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}? Else " if close else ""
    raise InputError(
        f"no model is called {model[:80]!r}, and there is no such file; {hint}give a config.json, a .gguf file, a "
        f"model's folder, or one of {', '.join(SHAPES)}"
    )


def _config(path: Path) -> Mapping[str, object]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{error.strerror}; give a model's config.json") from None
    if len(text) > _MOST_BYTES:
        raise ValueError("it is too large for a config.json")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise ValueError("it is not a JSON object; give a model's config.json")
    return config
