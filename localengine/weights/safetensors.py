"""Tensors in safetensors files, one or several, with their places checked before anything is read.

The library behind it checks a file's header against the file: every tensor lies wholly inside, none overlaps
another, none has another size than its shape and type ask for. (https://github.com/huggingface/safetensors)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestra.localengine.weights.fields import DAMAGED
from orchestra.localengine.weights.files import Placing

if TYPE_CHECKING:
    import torch

__all__ = ["Tensors", "shard_of"]

_NUMBERS = frozenset({"F64", "F32", "F16", "BF16"})
_MAX_SHARDS = 1 << 10


class Tensors:
    """The tensors of a model's ``*.safetensors`` files. ``places`` maps names to files of ``folder``.

    ``shapes`` are those that the files state. Raises ValueError (fault and remedy) where a file is not sound.
    """

    def __init__(self, folder: Path, places: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        files = sorted(set(places.values())) if places is not None else ["model.safetensors"]
        if len(files) > _MAX_SHARDS:
            raise ValueError(f"its index names {len(files):,} files; {DAMAGED}")
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, str] = {}
        self._places: dict[str, str] = {}
        for name in files:
            with _opened(folder / name) as file:
                for key in file.keys():  # noqa: SIM118  (it is no mapping)
                    if places is not None and places.get(key) != name:
                        continue  # the index says that it is elsewhere, or nowhere
                    part = file.get_slice(key)
                    self.shapes[key] = tuple(part.get_shape())
                    self._types[key] = str(part.get_dtype())
                    self._places[key] = name
        if places is not None and (missing := places.keys() - self.shapes.keys()):
            raise ValueError(
                f"its index names {len(missing)} tensors that are not in their files, such as {min(missing)!r}; "
                f"{DAMAGED}"
            )

    def check(self, shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, str]) -> None:
        """Raise ValueError unless each tensor of ``shapes`` is there as ``names`` calls it, of its shape."""
        for wanted, shape in shapes.items():
            name = names.get(wanted, wanted)
            if name not in self.shapes:
                raise ValueError(f"it lacks the tensor {name!r}; {DAMAGED}")
            if self.shapes[name] != shape:
                raise ValueError(
                    f"tensor {name!r} has shape {list(self.shapes[name])} where config.json says {list(shape)}; "
                    f"{DAMAGED}"
                )
            if self._types[name] not in _NUMBERS:
                raise ValueError(
                    f"tensor {name!r} is of type {self._types[name]}, which is not read; choose the model in "
                    "BF16, F16 or F32, or a GGUF"
                )

    def read(self, names: Mapping[str, str], placing: Placing | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Each of ``names``' keys with its tensor, called as its value says: contiguous float32 in memory.

        With ``placing`` it is where that puts it, straight from the mapped file.
        """
        import torch

        by_file: dict[str, list[str]] = {}
        for wanted, name in names.items():
            by_file.setdefault(self._places[name], []).append(wanted)
        for place, members in sorted(by_file.items()):
            with _opened(self._folder / place) as file:
                for wanted in members:
                    if placing is not None:
                        yield wanted, placing.place(wanted, file.get_tensor(names[wanted]))
                        continue
                    tensor = file.get_tensor(names[wanted]).to(torch.float32, copy=True).contiguous()
                    least, most = torch.aminmax(tensor)  # a NaN anywhere becomes both
                    if not (least.isfinite() and most.isfinite()):
                        raise ValueError(f"tensor {names[wanted]!r} holds numbers that are not finite; {DAMAGED}")
                    yield wanted, tensor


def shard_of(name: object) -> str:
    """The name of a file beside the index that names it. Raises ValueError where it leads anywhere else."""
    if (
        not isinstance(name, str)
        or not name.endswith(".safetensors")
        or name.startswith(".")
        or not name.isprintable()
        or any(c in name for c in "/\\:")
        or os.path.basename(name) != name
    ):
        raise ValueError(f"its index names the file {str(name)[:60]!r}, which is no *.safetensors file beside it")
    return name


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():  # a device or a pipe would be waited for
        raise ValueError(f"it has no file {path.name}; {DAMAGED}")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        fault = str(error).strip().partition("\n")[0][:200].rstrip(".")
        raise ValueError(f"{path.name} is no sound safetensors file ({fault}); {DAMAGED}") from error
