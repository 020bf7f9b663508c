"""From the name of a model to everything that serves it."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orchestra.localengine.config import EngineConfig
from orchestra.localengine.errors import EngineError
from orchestra.localengine.precision import Precision
from orchestra.localengine.request import Message
from orchestra.localengine.settled_config import SettledConfig
from orchestra.localengine.step import StepRunner
from orchestra.localengine.text.assembler import TokenBytes
from orchestra.localengine.text.structure import StructureCompiler
from orchestra.localengine.text.tools import ToolSyntax, tool_syntax

if TYPE_CHECKING:
    from orchestra.localengine.weights.files import ModelFiles

__all__ = ["ChatEncoder", "LoadedModel", "PromptTokenizer", "model_opener", "prepare_torch"]

_log = logging.getLogger(__name__)


class PromptTokenizer(TokenBytes, Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> AbstractSet[int]: ...

    def encode_prompt(self, text: str) -> list[int]: ...


class ChatEncoder(Protocol):
    """Turns chat messages, and the tools that the model may call, into a prompt's token ids."""

    def __call__(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, object]] = ..., /
    ) -> list[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that is ready to serve.

    ``context`` is the most tokens that prompt and output may have together. ``encode_chat`` turns chat messages
    into token ids by the model's template, and ``tool_syntax`` is how its family calls tools; None where the model
    has no template. ``structures`` compiles the forms that an output may be held to. ``config`` is what the
    engine's settings came to on ``device``; None is what they come to on a CPU.
    """

    name: str
    runner: StepRunner
    tokenizer: PromptTokenizer
    encode_chat: ChatEncoder | None
    context: int
    threads: int
    tool_syntax: ToolSyntax | None = None
    structures: StructureCompiler | None = None
    device: str = "cpu"
    config: SettledConfig | None = None


def prepare_torch() -> None:
    """Have torch wait for its threads, and keep what it compiles, as suits an engine. Call it before the import.

    Variables of the environment that are set already stay as they are.

    A step waits for its threads some thousand times. By default those spin long meanwhile, and a step takes
    several times as long as soon as anything else runs; where they hardly spin, each wait costs a wake-up.
    Measured on two cores, milliseconds of a step of 1, 8 and 16 rows:

    ======  ================  =====================
    spins   quiet machine     beside a busy process
    ======  ================  =====================
    2,000   75 / 125 / 160    102 / 170 / 225
    5,000   50 / 100 / 120    144 / 223 / 275
    20,000  45 / 78 / 100     320 / 395 / 484
    ======  ================  =====================

    5,000 lose least in the worse case. Set GOMP_SPINCOUNT=20000 where the engine has the machine to itself.

    oneDNN compiles each matrix product for its number of rows, and keeps 1,024 of them, twice: 1.3 MB each, for
    steps that have another number of rows every time. 64 are what some twelve sizes of step need; compiling anew
    is quick.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    for cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(cache, "64")


def model_opener(weights: str) -> Callable[[EngineConfig], LoadedModel]:
    """A function that reads ``weights`` into memory. Raises ModelFileError at once where there is no such file."""
    from orchestra.localengine.weights.registry import resolve

    path = resolve(weights)

    def open_model(config: EngineConfig) -> LoadedModel:
        prepare_torch()
        import torch

        from orchestra.localengine.gpu.selection import settle, this_machine
        from orchestra.localengine.text.chat_template import ChatTemplate

        device, precision = settle(config, this_machine())
        runner: StepRunner
        if device == "cpu":
            settled = SettledConfig.on_cpu(config)
            files, runner = _on_cpu(path, settled, precision)
        else:
            from orchestra.localengine.gpu.loading import load_on_gpu

            files, runner, settled = load_on_gpu(path, torch.device(device), config, precision)
        tokenizer = files.tokenizer
        encode_chat: ChatEncoder | None = None
        syntax = None
        if files.chat_template is not None:
            template = ChatTemplate(
                files.chat_template,
                bos_token=tokenizer.token_text(tokenizer.bos_id),
                eos_token=tokenizer.token_text(tokenizer.eos_id),
            )

            syntax = tool_syntax(files.chat_template, lambda text: tuple(tokenizer.split(text)))

            def encode_chat(messages: Sequence[Message], tools: Sequence[Mapping[str, object]] = ()) -> list[int]:
                return template.encode(messages, tokenizer, tools=tools)

        _give_back_memory()
        return LoadedModel(
            name=files.name,
            runner=runner,
            tokenizer=tokenizer,
            encode_chat=encode_chat,
            context=files.spec.max_position,
            threads=torch.get_num_threads(),
            tool_syntax=syntax,
            structures=StructureCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids),
            device=device,
            config=settled,
        )

    return open_model


def _on_cpu(path: Path, config: EngineConfig, precision: Precision) -> tuple[ModelFiles, StepRunner]:
    from orchestra.kernels.linear import int8_fault
    from orchestra.localengine.execution.runner import Runner
    from orchestra.localengine.models.capacity import available_memory, plan_capacity, weight_bytes
    from orchestra.localengine.weights.opening import load_model

    if precision == "int8" and (fault := int8_fault()):
        raise EngineError(f'{fault}; set precision to "float32"')
    files = load_model(path)
    loaded = sum(tensor.nbytes for tensor in files.weights.values())
    try:
        capacity = plan_capacity(
            files.spec,
            block_size=config.block_size,
            kv_bytes=config.kv_bytes,
            # the weights are there, in float32; they take their own form one by one
            free_bytes=available_memory() + loaded - weight_bytes(files.spec, precision),
            precision=precision,
        )
    except ValueError as error:
        raise EngineError(str(error)) from error
    _log.info("%s: %s", files.name, capacity.describe())
    runner = Runner(
        files.spec,
        files.weights,
        num_blocks=capacity.num_blocks,
        block_size=config.block_size,
        threads=config.threads,
        precision=precision,
        strict=config.strict,
    )
    return files, runner


def _give_back_memory() -> None:
    """Give what loading has freed back to the system: the C library would keep it, a tenth of all and more."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        pass
