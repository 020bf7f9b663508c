"""A model in memory, whatever kind of file it came from, and the errors that all kinds share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orchestra.localengine.errors import ModelFileError
from orchestra.localengine.models.capacity import available_memory, human, weight_bytes
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

__all__ = ["ModelFiles", "Placing", "check_memory", "naming"]


class Placing(Protocol):
    """Where a model's tensors go as they are read, other than into this machine's memory as float32."""

    def check_memory(self, spec: ModelSpec) -> None:
        """Raise ValueError where the weights do not fit there."""
        ...

    def place(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of ``tensor`` there, which may be kept in another type; ``tensor`` itself is not kept."""
        ...

    def check_numbers(self) -> None:
        """Wait until all are there, and raise ValueError where one holds a number that is not finite."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """All that the engine needs of a model.

    ``weights``: contiguous float32 tensors under their Hugging Face names (of which
    ``model.layers.0.self_attn.q_proj.weight`` is ``[num_heads * head_dim, hidden_size]``, in half-rotation order);
    ``lm_head.weight`` only where the embeddings are not tied. They are on a device, in its own types, where a
    `Placing` was given. ``chat_template``: Jinja source, or None.
    """

    name: str
    spec: ModelSpec
    weights: dict[str, torch.Tensor] = field(repr=False)
    tokenizer: Tokenizer
    chat_template: str | None = field(repr=False)


def check_memory(spec: ModelSpec) -> None:
    """Raise ValueError where the weights do not fit into the free memory.

    A small file can ask for a thousand times its size, and where memory is promised and not there, the system ends
    the process without a word.
    """
    needed, free = weight_bytes(spec), available_memory()
    if needed > free:
        raise ValueError(
            f"its weights take {human(needed)} of memory and {human(free)} are free; choose a smaller model"
        )


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """What is wrong with a model at ``path`` becomes a ModelFileError that names it."""
    try:
        yield
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be read ({error.strerror or error}): check the path and its permissions"
        ) from error
    except (ValueError, MemoryError) as error:
        fault = "it does not fit into memory; choose a smaller model" if isinstance(error, MemoryError) else error
        raise ModelFileError(f"{path} cannot be used as a model: {fault}") from error
