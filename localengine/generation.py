"""One request's output side: tokens in, text and the end out."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from orchestra.localengine.request import FinishReason, Timing, Usage
from orchestra.localengine.sequence import Sequence
from orchestra.localengine.stream import DeltaBuffer
from orchestra.localengine.text import TextAssembler, TokenBytes

__all__ = ["Generation"]


class Generation:
    """Turns the tokens drawn for ``seq`` into deltas, and says when the output ends.

    ``eos_ids`` are the model's own end tokens. Instants are seconds of one monotonic clock.
    """

    def __init__(
        self,
        seq: Sequence,
        tokenizer: TokenBytes,
        eos_ids: AbstractSet[int],
        buffer: DeltaBuffer,
        submitted: float,
    ) -> None:
        self.seq = seq
        self.buffer = buffer
        self._assembler = TextAssembler(tokenizer, seq.sampling.stop)
        self._end_ids = frozenset(seq.sampling.stop_token_ids) | (
            frozenset() if seq.sampling.ignore_eos else frozenset(eos_ids)
        )
        self._submitted = submitted
        self._began: float | None = None
        self._times: list[float] = []

    def begin(self, now: float) -> None:
        """A step computes something for it. Only the first counts."""
        if self._began is None:
            self._began = now

    def accept(self, token_id: int, now: float) -> bool:
        """Take the next output token; True where it is the last one.

        An end token is part of the output's ids and gives no text.
        """
        self._times.append(now - self._submitted)
        ends = token_id in self._end_ids
        text = "" if ends else self._assembler.push(token_id)
        reason: FinishReason | None = None
        if ends or self._assembler.stopped:
            reason = "stop"
        elif self.seq.num_output >= self.seq.max_tokens:
            reason = "length"
        if reason is None:
            self.buffer.put(text, token_id)
            return False
        text += self._assembler.flush()
        began = now if self._began is None else self._began
        self.buffer.finish(
            text,
            token_id,
            "stop" if self._assembler.stopped else reason,
            Usage(prompt_tokens=self.seq.num_prompt, completion_tokens=self.seq.num_output),
            Timing(queue=began - self._submitted, ttft=self._times[0], tokens=tuple(self._times)),
            self._assembler.stop,
        )
        return True
