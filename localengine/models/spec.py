"""The shape of a model: every number that the forward pass, the cache and the planner need."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ModelSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer, as its file describes it.

    ``architecture`` names the forward pass (``"llama"``). ``head_dim`` is stated, not derived: some models have
    ``num_heads * head_dim != hidden_size``. ``max_position`` is the longest context in tokens that the model was
    trained for. ``rope_theta`` is the base of the rotary frequencies. With ``tie_embeddings`` the output
    projection is the embedding matrix.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    tie_embeddings: bool

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that the KV cache holds for one token: keys and values of every layer."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim
