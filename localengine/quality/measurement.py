"""What a model does on this machine: how fast its steps are, and how good it is in another precision."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from orchestra.localengine.config import EngineConfig
from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.quality.comparison import Answers, Quality, answers_of
from orchestra.localengine.quality.prose import BEGINNINGS, PASSAGES
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.service.loading import LoadedModel
from orchestra.localengine.step import RowInput

__all__ = ["Measurement", "measure_model"]

Progress = Callable[[str], None]

_GREEDY = SamplingParams(temperature=0)
_OUTPUT_TOKENS = 40
_ROWS = (1, 4, 16)
_CONTEXT = 128
_STEPS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The speed of a model's steps, and its quality.

    ``decode_seconds``: the median time of a step that computes one token for each of so many requests, each with
    ``context`` tokens before it. ``prefill_seconds``: that of a step that computes so much prompt. ``quality`` is
    None in float32, which the others are held against.
    """

    context: int
    decode_seconds: Mapping[int, float]
    prefill_seconds: float
    quality: Quality | None


def measure_model(
    open_model: Callable[[EngineConfig], LoadedModel],
    config: EngineConfig,
    progress: Progress = lambda sentence: None,
) -> Measurement:
    """Load the model as the engine would on a CPU with ``config``, and try it. ``progress`` is told what begins.

    Takes half a minute with a model of 135 million parameters on two cores, longer in proportion to its size.
    In another precision than float32 the model is loaded in float32 first, and its answers are kept, not it.
    Raises EngineError where it cannot be loaded.
    """
    precision = "float32" if config.precision == "auto" else config.precision
    config = replace(config, device="cpu", precision=precision)
    answers = None
    if config.precision != "float32":
        progress("reading the weights, to be kept in float32")
        with _Subject(open_model(replace(config, precision="float32", strict=False))) as exact:
            progress("asking it for its answers in float32")
            answers = exact.answers()
    progress(f"reading the weights, to be kept in {config.precision}")
    with _Subject(open_model(config)) as subject:
        quality = None
        if answers is not None:
            progress(f"comparing its answers in {config.precision}")
            quality = answers.quality(subject.logits)
        progress("timing its steps")
        return Measurement(
            context=subject.context,
            decode_seconds={rows: subject.time_decode(rows) for rows in subject.batches()},
            prefill_seconds=subject.time_prefill(),
            quality=quality,
        )


class _Subject:
    """A loaded model that is asked directly, without scheduling; what it holds is free again after ``with``."""

    def __init__(self, model: LoadedModel) -> None:
        assert isinstance(model.runner, Runner), "models of files run on it"
        self._model = model
        self._runner = model.runner
        self._most = min(model.context, self._runner.num_blocks * self._runner.block_size)  # tokens of a text
        self.context = min(_CONTEXT, self._most - 1)

    def __enter__(self) -> _Subject:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._runner.close()

    def logits(self, ids: Sequence[int]) -> Tensor:
        (logits,) = self._runner.logits([self._row(0, ids, 0, len(ids))])
        return logits

    def answers(self) -> Answers:
        encode = self._model.tokenizer.encode_prompt
        passages = [encode(text)[: self._most] for text in PASSAGES]
        beginnings = [encode(text)[: self._most // 2] for text in BEGINNINGS]
        return answers_of(self.logits, passages, beginnings, [self._continue(ids) for ids in beginnings])

    def batches(self) -> list[int]:
        """How many requests to try at once: those that the cache has room for."""
        return [rows for rows in _ROWS if rows * self._blocks(self.context + 1) <= self._runner.num_blocks]

    def time_decode(self, rows: int) -> float:
        prompts = [self._row(i, self._some_ids(), 0, self.context + 1) for i in range(rows)]
        for prompt in prompts:
            self._runner.run([prompt])
        tokens = [self._row(i, [1], self.context, self.context + 1, _GREEDY) for i in range(rows)]
        return self._time(tokens)

    def time_prefill(self) -> float:
        return self._time([self._row(0, self._some_ids(), 0, self.context, _GREEDY)])

    def _time(self, rows: Sequence[RowInput]) -> float:
        self._runner.run(rows)
        times = []
        for _ in range(_STEPS):
            began = time.perf_counter()
            self._runner.run(rows)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    def _continue(self, beginning: Sequence[int]) -> list[int]:
        """The greedy output after ``beginning``, its end token included where it comes to one."""
        output: list[int] = []
        pending, start = list(beginning), 0
        length = min(len(beginning) + _OUTPUT_TOKENS, self._most)
        while len(beginning) + len(output) < length:
            row = self._row(0, pending, start, length, _GREEDY)
            (drawn,) = self._runner.run([row])
            assert drawn.token_id is not None, "a sampled row has a token"
            output.append(drawn.token_id)
            if drawn.token_id in self._model.tokenizer.eos_ids:
                break
            start += len(pending)
            pending = [drawn.token_id]
        return output

    def _some_ids(self) -> list[int]:
        ids = self._model.tokenizer.encode_prompt(" ".join(PASSAGES))
        return (ids * -(-self.context // len(ids)))[: self.context]

    def _row(
        self, number: int, ids: Sequence[int], start: int, length: int, sampling: SamplingParams | None = None
    ) -> RowInput:
        """``ids`` of the request of this number, which has blocks of its own for ``length`` tokens."""
        blocks = self._blocks(length)
        return RowInput(number, 0, ids, start, range(number * blocks, (number + 1) * blocks), sampling, 0)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._runner.block_size)
