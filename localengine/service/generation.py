"""One request's output side: tokens in, text and the end out."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet

from orchestra.localengine.events import Subscriber
from orchestra.localengine.request import Candidate, Delta, FinishReason, Timing, TokenLogprob, ToolCall, Usage
from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.localengine.service.stream import DeltaBuffer
from orchestra.localengine.step import TokenScore
from orchestra.localengine.text.assembler import TextAssembler, TokenBytes
from orchestra.localengine.text.tools import ToolParser

__all__ = ["Generation"]


class Generation:
    """Turns the tokens drawn for ``seq`` into deltas, and says when the output ends.

    It is completion ``index`` of its prompt. With ``tools``, calls are read from the text, in which the special
    tokens ``visible`` count. Instants are seconds of one monotonic clock. ``on_event`` wants to know what happens
    to it.
    """

    def __init__(
        self,
        seq: Sequence,
        tokenizer: TokenBytes,
        buffer: DeltaBuffer,
        submitted: float,
        *,
        index: int = 0,
        tools: ToolParser | None = None,
        visible: AbstractSet[int] = frozenset(),
        on_event: Subscriber | None = None,
    ) -> None:
        self.seq = seq
        self.buffer = buffer
        self.index = index
        self.submitted = submitted
        self.on_event = on_event
        self.last: Delta | None = None
        """Its last delta, once it was put."""
        self._tokenizer = tokenizer
        self._assembler = TextAssembler(
            tokenizer,
            seq.sampling.stop,
            unsearched=seq.sampling.min_tokens,
            after=seq.sampling.stop_after,
            visible=visible,
        )
        self._tools = tools
        self._began: float | None = None
        self._times: list[float] = []

    @property
    def ttft(self) -> float:
        """Seconds from its submission to its first token, which is there."""
        return self._times[0]

    @property
    def latest_gap(self) -> float | None:
        """Seconds between its two latest tokens; None where there are not two."""
        return self._times[-1] - self._times[-2] if len(self._times) > 1 else None

    def due(self, gap: float) -> float:
        """When its next token keeps its mean time between tokens at ``gap`` seconds; infinity before its first."""
        return self.submitted + self._times[0] + gap * self.seq.num_output if self._times else math.inf

    def begin(self, now: float) -> bool:
        """A step computes something for it; True where it is the first."""
        if self._began is not None:
            return False
        self._began = now
        return True

    def accept(self, token_id: int, now: float, score: TokenScore | None = None) -> bool:
        """Take the next output token; True where it is the last one.

        An end token is part of the output's ids and gives no text. Raises EngineError where the output cannot be
        held to its form any further.
        """
        seq = self.seq
        self._times.append(now - self.submitted)
        offset = self._assembler.length
        whole = seq.constraint is not None and seq.constraint.accept(token_id)
        ends = token_id in seq.end_ids
        text = "" if ends else self._assembler.push(token_id)
        reason: FinishReason | None = None
        if ends or whole or self._assembler.stopped:
            reason = "stop"
        elif seq.num_output >= seq.max_tokens:
            reason = "length"
        if reason is not None:
            text += self._assembler.flush()
            if self._assembler.stopped:
                reason = "stop"
        text, calls = self._calls(text, last=reason is not None)
        logprob = None if score is None else (self._told(score, offset),)
        prompt = None
        if len(self._times) == 1 and seq.sampling.prompt_logprobs is not None:
            prompt = self._prompt_logprobs()
        if reason is None:
            self.buffer.put(
                Delta(
                    text,
                    (token_id,),
                    index=self.index,
                    logprobs=logprob,
                    prompt_logprobs=prompt,
                    tool_calls=calls,
                )
            )
            return False
        began = now if self._began is None else self._began
        self.last = Delta(
            text,
            (token_id,),
            reason,
            Usage(seq.num_prompt, seq.num_output, seq.num_cached or 0),
            Timing(queue=began - self.submitted, ttft=self._times[0], tokens=tuple(self._times)),
            self._assembler.stop,
            self.index,
            logprob,
            prompt,
            calls,
        )
        self.buffer.put(self.last)
        return True

    def _calls(self, text: str, *, last: bool) -> tuple[str, tuple[ToolCall, ...]]:
        """The text that is no call, and the calls that are whole with it."""
        if self._tools is None:
            return text, ()
        plain, calls = self._tools.push(text)
        if last:
            rest, late = self._tools.flush()
            plain, calls = plain + rest, calls + late
        return plain, calls

    def _told(self, score: TokenScore, offset: int) -> TokenLogprob:
        word = self._tokenizer.token_bytes
        top = tuple(Candidate(token_id, logprob, word(token_id)) for token_id, logprob in score.top)
        return TokenLogprob(score.token_id, score.logprob, score.rank, word(score.token_id), top, offset)

    def _prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        """One for each token of the prompt but the first, with its place in the prompt's text."""
        seq = self.seq
        text = TextAssembler(self._tokenizer, visible=frozenset(seq.token_ids))
        text.push(seq.token_ids[0])
        told = []
        for score in seq.prompt_scores:
            told.append(self._told(score, text.length))
            text.push(score.token_id)
        return tuple(told)
