"""A request as the scheduler sees it: token ids, how many of them are computed, and the blocks they lie in."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestra.localengine.request import SamplingParams
from orchestra.localengine.step import TokenScore
from orchestra.localengine.text.structure import Constraint
from orchestra.policies.traffic import TrafficClass

__all__ = ["Sequence"]


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """Prompt and output are one list of tokens, so that a displaced sequence is replayed like any prompt.

    The first ``num_computed`` of ``token_ids`` have their keys and values in the blocks of ``block_table``.
    ``arrival`` orders the requests of a class. ``epoch`` grows with every displacement: a result that carries an
    older one is dropped. ``last_turn`` is the number of its last row, counted over all rows that ever ran.
    ``end_ids`` are the tokens that end the output, ``constraint`` what holds it to a form. ``kin`` are all the
    completions of its prompt, itself among them, where there are several.
    ``prompt_scores`` are those of the prompt's tokens from the second on, as far as they are known.
    Only sequences of one ``cache_salt`` share what they have computed. ``num_cached`` is how many tokens of the
    prompt were in the prefix cache when it first ran; None until then.
    """

    request_id: int
    traffic: TrafficClass
    arrival: int
    token_ids: list[int]
    max_tokens: int
    sampling: SamplingParams
    noise_key: int = 0
    end_ids: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    kin: list[Sequence] = field(default_factory=list, repr=False)
    prompt_scores: list[TokenScore] = field(default_factory=list, repr=False)
    cache_salt: str | None = None
    num_prompt: int = field(init=False)
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    epoch: int = 0
    displacements: int = 0
    last_turn: int = -1
    num_cached: int | None = None

    def __post_init__(self) -> None:
        self.num_prompt = len(self.token_ids)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt :]

    @property
    def max_length(self) -> int:
        """The most tokens that it can ever have."""
        return self.num_prompt + self.max_tokens

    @property
    def remaining_prefill(self) -> int:
        """Tokens still to compute before the next one can be drawn. 1 while decoding; never 0 between steps."""
        return len(self.token_ids) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Only its newest output token is still to compute."""
        return self.num_output > 0 and self.remaining_prefill == 1
