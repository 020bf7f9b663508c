"""From what a caller asks for to what the scheduler runs, checked before anybody waits for it."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, replace
from typing import cast

from orchestra.localengine.errors import ParameterError, PromptError, PromptTooLong
from orchestra.localengine.events import Subscriber
from orchestra.localengine.request import Chat, Message, Prompt, SamplingParams
from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.localengine.service.generation import Generation
from orchestra.localengine.service.loading import ChatEncoder, LoadedModel
from orchestra.localengine.service.stream import DeltaBuffer
from orchestra.localengine.text.structure import Constraint
from orchestra.localengine.text.tools import ToolParser, call_structure, for_template
from orchestra.policies.traffic import TrafficClass

__all__ = ["Intake", "encode", "is_quick", "take_in"]


@dataclass(frozen=True, slots=True)
class Intake:
    """A request that can be served. ``constraints`` has one for each completion, or none."""

    token_ids: list[int]
    max_tokens: int
    sampling: SamplingParams
    end_ids: frozenset[int]
    constraints: tuple[Constraint, ...]
    tool_names: frozenset[str] | None
    parallel: bool

    def generations(
        self,
        model: LoadedModel,
        numbers: AbstractSequence[int],
        traffic: TrafficClass,
        submitted: float,
        cache_salt: str | None = None,
        on_event: Subscriber | None = None,
    ) -> list[Generation]:
        """One for each completion; ``numbers`` are their request ids.

        Raises ParameterError where the salt is no text.
        """
        if not isinstance(cache_salt, str | None):
            raise ParameterError(
                f"cache_salt is text or None, not {type(cache_salt).__name__}", field="cache_salt"
            )
        buffer = DeltaBuffer(len(numbers))
        key = random.getrandbits(63) if self.sampling.seed is None else self.sampling.seed
        kin: list[Sequence] = []
        for index, number in enumerate(numbers):
            seq = Sequence(
                request_id=number,
                traffic=traffic,
                arrival=number,
                token_ids=list(self.token_ids),
                max_tokens=self.max_tokens,
                # the first tells of the prompt, for all of them
                sampling=self.sampling if index == 0 else replace(self.sampling, prompt_logprobs=None),
                noise_key=key + index,
                end_ids=self.end_ids,
                constraint=self.constraints[index] if self.constraints else None,
                cache_salt=cache_salt,
            )
            kin.append(seq)
        for seq in kin if len(kin) > 1 else ():
            seq.kin = kin
        syntax = model.tool_syntax
        return [
            Generation(
                seq,
                model.tokenizer,
                buffer,
                submitted,
                index=index,
                tools=ToolParser(syntax, self.tool_names, parallel=self.parallel)
                if syntax and self.tool_names
                else None,
                visible=syntax.visible if syntax and self.tool_names else frozenset(),
                on_event=on_event,
            )
            for index, seq in enumerate(kin)
        ]


def is_quick(prompt: Prompt, params: SamplingParams) -> bool:
    """Whether `take_in` is a matter of microseconds, so that an event loop may do it."""
    return not (isinstance(prompt, str | Chat) or _is_chat(prompt) or params.structure is not None)


def take_in(model: LoadedModel, capacity: int, prompt: Prompt, params: SamplingParams) -> Intake:
    """Encode and check a request; a class may have ``capacity`` tokens in the cache.

    Raises PromptError where it can never be served (PromptTooLong, GrammarError).
    """
    names = None
    if isinstance(prompt, Chat) and prompt.tools:
        token_ids = encode(model, prompt)
        names, params = _with_tools(model, prompt, params)
    else:
        token_ids = encode(model, prompt)
    vocabulary = range(model.tokenizer.vocab_size)
    for token in params.logit_bias:
        if token not in vocabulary:
            raise ParameterError(
                f"logit_bias: token id {token} is outside the vocabulary (0 to {len(vocabulary) - 1})",
                field="logit_bias",
            )
    ends = (*params.stop_token_ids, *(() if params.ignore_eos else model.tokenizer.eos_ids))
    return Intake(
        token_ids,
        _output_room(model, capacity, len(token_ids), params),
        params,
        frozenset(token for token in ends if token in vocabulary),
        _constraints(model, params),
        names,
        not isinstance(prompt, Chat) or prompt.parallel,
    )


def _with_tools(model: LoadedModel, chat: Chat, params: SamplingParams) -> tuple[frozenset[str], SamplingParams]:
    """The tools' names, and the parameters that hold the output to a call where one is demanded."""
    assert model.tool_syntax is not None, "a model that encodes chats has a syntax"
    demanded = call_structure(model.tool_syntax, chat)
    if demanded is not None:
        # a call ends by itself; what else might end the output would only break it
        params = replace(params, structure=demanded, stop=(), stop_token_ids=(), min_tokens=0, ignore_eos=False)
    return frozenset(str(cast("Mapping[str, object]", t["function"])["name"]) for t in chat.tools), params


def _constraints(model: LoadedModel, params: SamplingParams) -> tuple[Constraint, ...]:
    if params.structure is None:
        return ()
    if model.structures is None:
        raise ParameterError(f"{model.name} cannot be held to a structure", field="structure")
    return tuple(model.structures.constraint(params.structure) for _ in range(params.n))


def encode(model: LoadedModel, prompt: Prompt) -> list[int]:
    """The token ids that a prompt is served as. Raises PromptError."""
    if isinstance(prompt, str):
        token_ids = model.tokenizer.encode_prompt(prompt)
    elif isinstance(prompt, Chat) or _is_chat(prompt):
        if model.encode_chat is None:
            raise PromptError(f"{model.name} has no chat template: send the prompt as text")
        token_ids = _encode_chat(model.encode_chat, model, prompt)
    else:
        token_ids = _checked_ids(model, cast("list[int]", prompt))
    if not token_ids:
        raise PromptError("the prompt is empty: give at least one token")
    return token_ids


def _encode_chat(encode_chat: ChatEncoder, model: LoadedModel, prompt: object) -> list[int]:
    chat = prompt if isinstance(prompt, Chat) else Chat(cast("list[Message]", prompt))
    syntax = model.tool_syntax
    if syntax is None and chat.tools:
        raise ParameterError(f"{model.name} cannot call tools", field="tools")
    if syntax is not None:
        chat = for_template(syntax, chat)
    return encode_chat(chat.messages, chat.tools) if chat.tools else encode_chat(chat.messages)


def _is_chat(prompt: object) -> bool:
    return isinstance(prompt, AbstractSequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _checked_ids(model: LoadedModel, prompt: Iterable[int]) -> list[int]:
    try:
        if isinstance(prompt, bytes | bytearray | Mapping):
            raise TypeError  # which would pass for token ids
        token_ids = [operator.index(token) for token in prompt]
    except TypeError:
        raise PromptError(
            f"a prompt is text, a list of token ids, or a list of chat messages, not {type(prompt).__name__}"
            if not isinstance(prompt, list | tuple)
            else "a prompt is text, a list of token ids, or a list of chat messages, and not a mixture"
        ) from None
    size = model.tokenizer.vocab_size
    for place, token in enumerate(token_ids):
        if not 0 <= token < size:
            raise PromptError(f"token id {token} at place {place} is outside the vocabulary (0 to {size - 1})")
    return token_ids


def _output_room(model: LoadedModel, capacity: int, num_prompt: int, params: SamplingParams) -> int:
    """How many tokens the output may have. Raises PromptTooLong where that is none, or fewer than asked for."""
    limit = min(model.context, capacity)
    place = "the model's context" if limit == model.context else "the KV cache (kv_bytes)"
    if num_prompt >= limit:
        raise PromptTooLong(
            f"the prompt has {num_prompt} tokens and {place} holds {limit}, of which the output needs at least 1: "
            "shorten the prompt"
        )
    wanted = params.max_tokens
    if wanted is not None and num_prompt + wanted > limit:
        raise PromptTooLong(
            f"{num_prompt} prompt tokens and max_tokens of {wanted} make {num_prompt + wanted}, and {place} holds "
            f"{limit}: shorten the prompt or lower max_tokens"
        )
    return limit - num_prompt if wanted is None else wanted
