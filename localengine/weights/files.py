"""A model in memory, whatever kind of file it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

__all__ = ["ModelFiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """All that the engine needs of a model.

    ``weights``: contiguous float32 tensors under their Hugging Face names (of which
    ``model.layers.0.self_attn.q_proj.weight`` is ``[num_heads * head_dim, hidden_size]``, in half-rotation order);
    ``lm_head.weight`` only where the embeddings are not tied. ``chat_template``: Jinja source, or None.
    """

    name: str
    spec: ModelSpec
    weights: dict[str, torch.Tensor] = field(repr=False)
    tokenizer: Tokenizer
    chat_template: str | None = field(repr=False)
