"""Models as hubs publish them: a folder with ``config.json``, safetensors, a tokenizer and a chat template.

Every file in it is untrusted. Files are read as JSON, text and numbers, never as pickles, and nothing in the
folder is run; whatever is wrong becomes one ModelFileError with the folder, the fault and the remedy. Tensors are
checked against the shape that the config states, and that shape against the free memory, before any is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from orchestra.localengine.models.capacity import human
from orchestra.localengine.models.layout import EMBEDDING, HEAD, tensor_shapes
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.weights.fields import DAMAGED
from orchestra.localengine.weights.files import ModelFiles, Placing, check_memory, naming
from orchestra.localengine.weights.hub_config import spec_of_config
from orchestra.localengine.weights.hub_tokenizer import hub_tokenizer
from orchestra.localengine.weights.safetensors import Tensors, shard_of

__all__ = ["load_hub_folder", "read_hub_spec"]

_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_MIB = 1 << 20
_MAX_CONFIG = 4 * _MIB  # a tokenizer_config.json with a chat template and thousands of added tokens has 1 MiB
_MAX_TOKENIZER = 128 * _MIB  # that of Gemma 3 has 33
_MAX_INDEX = 16 * _MIB

# in a model for images, too, the language model has a name of its own, and the other parts are left alone
_OTHER_PARTS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


def load_hub_folder(folder: Path, placing: Placing | None = None) -> ModelFiles:
    """Read a whole model into memory as float32, or where ``placing`` puts it. Raises ModelFileError."""
    with naming(folder):
        config = _json(folder / _CONFIG, _MAX_CONFIG)
        spec = spec_of_config(config)
        (check_memory if placing is None else placing.check_memory)(spec)
        tensors = _tensors(folder)
        shapes = tensor_shapes(spec)
        names = _names(tensors, shapes, spec)
        tensors.check(shapes, names)
        generation = _optional_json(folder / "generation_config.json", _MAX_CONFIG)
        settings = _optional_json(folder / "tokenizer_config.json", _MAX_CONFIG)
        tokenizer = hub_tokenizer(
            _json(folder / "tokenizer.json", _MAX_TOKENIZER),
            settings,
            vocab_size=spec.vocab_size,
            end_ids=_end_ids(generation, config),
        )
        weights = dict(tensors.read(names, placing))
        if placing is not None:
            placing.check_numbers()
        return ModelFiles(
            name=folder.resolve().name,
            spec=spec,
            weights=weights,
            tokenizer=tokenizer,
            chat_template=_chat_template(folder, settings),
        )


def read_hub_spec(folder: Path) -> ModelSpec:
    """The model's shape, from its ``config.json`` alone. Raises ModelFileError."""
    with naming(folder):
        return spec_of_config(_json(folder / _CONFIG, _MAX_CONFIG))


def _tensors(folder: Path) -> Tensors:
    if (folder / "model.safetensors").exists():
        return Tensors(folder)
    if (folder / _INDEX).exists():
        places = _json(folder / _INDEX, _MAX_INDEX).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise ValueError(f"{_INDEX} has no weight_map; {DAMAGED}")
        return Tensors(folder, {name: shard_of(place) for name, place in places.items()})
    remedy = DAMAGED
    if any(next(folder.glob(pattern), None) for pattern in ("*.bin", "*.pt", "*.pth")):
        remedy = "pickled weights can run code and are never opened: convert them to safetensors"
    elif any(folder.glob("*.gguf")):
        remedy = "name the .gguf file in it instead"
    raise ValueError(f"it has neither model.safetensors nor {_INDEX}; {remedy}")


def _names(tensors: Tensors, shapes: Mapping[str, tuple[int, ...]], spec: ModelSpec) -> dict[str, str]:
    """Each tensor's name -> its name in the files. Raises ValueError where one is left that the model has not."""
    names = {name: name for name in shapes}
    for other in (
        {name: f"language_model.{name}" for name in shapes},
        {name: name.replace("model.", "model.language_model.", 1) for name in shapes},
    ):
        if other[EMBEDDING] in tensors.shapes:
            names = other
    known = set(names.values())
    for name in tensors.shapes:
        ignored = (
            name in known
            or name.startswith(_OTHER_PARTS)
            or name.endswith(".rotary_emb.inv_freq")  # kept by old checkpoints, and known anyway
            or (spec.tie_embeddings and name.endswith(HEAD))  # the embedding again
        )
        if not ignored:
            raise ValueError(
                f"tensor {name[:100]!r} is not part of a {spec.architecture} model; choose a plain one"
            )
    return names


def _end_ids(generation: Mapping[str, object], config: Mapping[str, object]) -> list[int]:
    """The tokens that end an output: a number or a list of them, in the first file that says it."""
    for owner in (generation, config):
        value = owner.get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        if value is not None:
            if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
                raise ValueError(f"eos_token_id is {str(value)[:60]}, no token id; {DAMAGED}")
            return [i for i in ids if isinstance(i, int)]
    return []


def _chat_template(folder: Path, settings: Mapping[str, object]) -> str | None:
    """Jinja source: the file of its own, else the one in the tokenizer's settings, of several the default one."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _text(path, _MAX_CONFIG)
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    if template is None or isinstance(template, str):
        return template
    raise ValueError(f"its chat_template is no text; {DAMAGED}")


def _text(path: Path, most: int) -> str:
    if not path.is_file():
        raise ValueError(f"it has no {path.name}; use a complete model folder")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"{path.name} has {human(size)}, more than any model needs; {DAMAGED}")
        data = file.read(size)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not UTF-8; {DAMAGED}") from None


def _json(path: Path, most: int) -> dict[str, object]:
    text = _text(path, most)
    try:
        value = json.loads(text)
    except ValueError as error:  # also for a number of thousands of digits
        raise ValueError(f"{path.name} is not JSON ({str(error)[:100]}); {DAMAGED}") from None
    except RecursionError:
        raise ValueError(f"{path.name} is nested without end; {DAMAGED}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not a JSON object; {DAMAGED}")
    return value


def _optional_json(path: Path, most: int) -> dict[str, object]:
    return _json(path, most) if path.exists() else {}
