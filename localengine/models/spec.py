"""The shape of a model: every number that the forward pass, the cache and the planner need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Activation", "LayerKind", "ModelSpec", "Rope"]

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """A rotary embedding: pair ``i`` of a head of D numbers turns ``theta ** (-2i / D) / factors[i]`` a position.

    ``factors`` has D / 2 numbers, or none where nothing is scaled. ``magnitude`` multiplies sine and cosine.
    """

    theta: float
    factors: tuple[float, ...] = ()
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """How one layer attends.

    ``window``: the latest tokens that it sees, its own included, or None for all of them.
    ``rope``: how it knows positions, or None where it does not.
    """

    window: int | None
    rope: Rope | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer, as its file describes it.

    ``architecture`` is the family's name (``"llama"``); what it computes is all in the other fields, whose
    defaults are Llama's. ``head_dim`` is stated, not derived: some models have
    ``num_heads * head_dim != hidden_size``. ``max_position`` is the longest context in tokens that the model was
    trained for. With ``tie_embeddings`` the output projection is the embedding matrix.

    Positions: ``rope_theta``, ``rope_factors`` and ``rope_magnitude`` make the :class:`Rope` of all layers but
    ``unrotated_layers``, which have none (SmolLM3), and but ``sliding_layers`` where ``sliding_rope_theta`` gives
    those an unscaled one of their own (Gemma 3). ``sliding_layers`` see ``sliding_window`` tokens, others all.

    Layers: ``qkv_bias`` (Qwen2) and ``out_bias`` add a bias to the projections before and after attention;
    ``qk_norm`` normalises each query and key head (Qwen3, Gemma 3); ``post_norms`` normalise what attention and
    MLP add to the residual (Gemma 2 and 3). ``norm_offset`` is added to the weight of every norm: Gemma's files
    store it less 1. ``attention_scale`` None is ``head_dim ** -0.5``. A soft-cap c turns x into c * tanh(x / c):
    ``attention_softcap`` the scores, ``logit_softcap`` the logits (Gemma 2). ``embedding_scale`` multiplies the
    embedded tokens.
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
    rope_factors: tuple[float, ...] = ()
    rope_magnitude: float = 1.0
    sliding_window: int | None = None
    sliding_layers: frozenset[int] = frozenset()
    sliding_rope_theta: float | None = None
    unrotated_layers: frozenset[int] = frozenset()
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    activation: Activation = "silu"
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    embedding_scale: float = 1.0

    def __post_init__(self) -> None:
        """Raise ValueError where the numbers do not go together."""
        if self.num_heads % self.num_kv_heads or self.head_dim % 2 or self.head_dim < 2:
            raise ValueError(
                f"{self.num_heads} query heads, {self.num_kv_heads} key heads of {self.head_dim} numbers do not "
                "go together; the model's file is damaged, download it again"
            )
        if len(self.rope_factors) not in (0, self.head_dim // 2):
            raise ValueError(
                f"{len(self.rope_factors)} rotary factors do not go with heads of {self.head_dim} numbers; the "
                "model's file is damaged, download it again"
            )
        if self.sliding_layers and self.sliding_window is None:
            raise ValueError("layers that see a window need its width; use a complete model file")

    def layer(self, number: int) -> LayerKind:
        """How layer ``number`` attends."""
        sliding = number in self.sliding_layers
        rope: Rope | None
        if number in self.unrotated_layers:
            rope = None
        elif sliding and self.sliding_rope_theta is not None:
            rope = Rope(theta=self.sliding_rope_theta)
        else:
            rope = Rope(theta=self.rope_theta, factors=self.rope_factors, magnitude=self.rope_magnitude)
        return LayerKind(window=self.sliding_window if sliding else None, rope=rope)

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that the KV cache holds for one token: keys and values of every layer."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim
