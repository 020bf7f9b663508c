"""Our engine over random weights, as the sections about it want it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from torch import Tensor

from gpu.lab import Lab
from gpu.models import random_weights
from orchestra.localengine import EngineConfig, LocalEngine
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.service.loading import LoadedModel
from orchestra.localengine.settled_config import SettledConfig
from orchestra.localengine.step import PENDING, OverlappingRunner, RowInput, RowOutput, StepRunner

__all__ = ["BLOCK_SIZE", "open_engine", "open_runner"]

BLOCK_SIZE = 16


class Characters:
    """A tokenizer that knows as many tokens as the model, each a character; none ends an output."""

    eos_ids = frozenset[int]()

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode_prompt(self, text: str) -> list[int]:
        return [ord(character) % self.vocab_size for character in text]

    def token_bytes(self, token_id: int) -> bytes:
        return b"a"

    def is_special(self, token_id: int) -> bool:
        return False


class _InTurn:
    """A CPU's runner in the form of one that computes a step while the next is prepared: for rehearsals."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._drawn: dict[int, int] = {}
        self.num_blocks, self.block_size = runner.num_blocks, runner.block_size
        self.close = runner.close

    def run(self, rows: Sequence[RowInput], abandon: Callable[[], bool] | None = None) -> list[RowOutput]:
        return self.collect(self.submit(rows, abandon))

    def submit(self, rows: Sequence[RowInput], abandon: Callable[[], bool] | None = None) -> list[RowOutput]:
        known = [
            replace(row, token_ids=(self._drawn[row.request_id],)) if row.token_ids[0] == PENDING else row
            for row in rows
        ]
        outputs = self._runner.run(known, abandon)
        self._drawn = {one.request_id: one.token_id for one in outputs if one.token_id is not None}
        return outputs

    def collect(self, step: object) -> list[RowOutput]:
        return cast(list[RowOutput], step)


def open_runner(
    lab: Lab,
    spec: ModelSpec,
    *,
    tokens: int,
    rows: int,
    step_tokens: int,
    graphs: bool = True,
    weights: dict[str, Tensor] | None = None,
) -> OverlappingRunner:
    """A runner of a model, whose pool holds ``tokens`` tokens; it takes over ``weights``, random ones by default.

    It is to compute ``step_tokens`` in a step, or ``rows`` of one token each, recorded as CUDA graphs unless
    ``graphs`` is False. In a rehearsal it is the CPU's, in float32.
    """
    weights = random_weights(spec, lab.dtype, lab.device) if weights is None else weights
    num_blocks = -(-tokens // BLOCK_SIZE)
    if lab.rehearsal:
        from orchestra.localengine.execution.runner import Runner

        return _InTurn(Runner(spec, weights, num_blocks=num_blocks, block_size=BLOCK_SIZE))
    from orchestra.localengine.gpu.runner import GpuRunner

    return GpuRunner(
        spec,
        weights,
        block_size=BLOCK_SIZE,
        step_tokens=step_tokens,
        max_num_seqs=rows,
        num_blocks=num_blocks,
        graphs=graphs,
    )


def open_engine(lab: Lab, spec: ModelSpec, config: SettledConfig, *, tokens: int) -> LocalEngine:
    """An engine over such a runner, with a pool of ``tokens`` tokens."""

    def open_model(_: EngineConfig) -> LoadedModel:
        return LoadedModel(
            name="random weights",
            runner=open_runner(lab, spec, tokens=tokens, rows=config.max_num_seqs, step_tokens=config.step_tokens),
            tokenizer=Characters(spec.vocab_size),
            encode_chat=None,
            context=spec.max_position,
            threads=1,
        )

    return LocalEngine(open_model, config)
