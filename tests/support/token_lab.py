"""An engine over a tiny random Llama whose tokens are bytes: real logits, real draws, no file."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from devices import begins_by, model_runner
from torch import Tensor

from orchestra.localengine.config import EngineConfig
from orchestra.localengine.engine import LocalEngine
from orchestra.localengine.execution.runner import Runner
from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.request import Delta
from orchestra.localengine.service.loading import LoadedModel
from orchestra.localengine.service.stream import DeltaStream
from orchestra.localengine.settled_config import SettledConfig
from orchestra.localengine.step import RowInput
from orchestra.localengine.text.structure import StructureCompiler
from orchestra.localengine.text.tools import ToolSyntax, tool_syntax

SPEC = ModelSpec(
    architecture="llama",
    vocab_size=300,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_position=512,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    tie_embeddings=True,
)
SMALL = EngineConfig(block_size=4, max_num_seqs=4, step_tokens=16, interactive_slots=1)


def tiny_words() -> list[bytes]:
    """Two control tokens (1 ends the output), every byte, and some longer pieces."""
    longer = [b'{"', b'": ', b"true", b"null", b"<tool_", b"call>", b'"}', b", ", "€".encode(), b"ab", b"\xe2\x82"]
    words = [b"<s>", b"</s>", *(bytes([octet]) for octet in range(256)), *longer]
    return words + [b"word%d" % number for number in range(SPEC.vocab_size - len(words))]


class TinyTokenizer:
    """Reads a text byte by byte: byte ``b`` is token ``b + 2``."""

    vocab_size = SPEC.vocab_size
    eos_ids = frozenset({1})

    def __init__(self) -> None:
        self._words = tiny_words()

    def encode_prompt(self, text: str) -> list[int]:
        return [octet + 2 for octet in text.encode()]

    def token_bytes(self, token_id: int) -> bytes:
        return self._words[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id < 2


def random_weights(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * scale / math.sqrt(columns)

    hidden, width = SPEC.hidden_size, SPEC.intermediate_size
    q, kv = SPEC.num_heads * SPEC.head_dim, SPEC.num_kv_heads * SPEC.head_dim
    weights = {
        "model.embed_tokens.weight": matrix(SPEC.vocab_size, hidden, 2.0),
        "model.norm.weight": torch.ones(hidden),
    }
    for i in range(SPEC.num_layers):
        at = f"model.layers.{i}."
        weights |= {
            at + "input_layernorm.weight": torch.ones(hidden),
            at + "self_attn.q_proj.weight": matrix(q, hidden, 2.0),
            at + "self_attn.k_proj.weight": matrix(kv, hidden, 2.0),
            at + "self_attn.v_proj.weight": matrix(kv, hidden),
            at + "self_attn.o_proj.weight": matrix(hidden, q),
            at + "post_attention_layernorm.weight": torch.ones(hidden),
            at + "mlp.gate_proj.weight": matrix(width, hidden),
            at + "mlp.up_proj.weight": matrix(width, hidden),
            at + "mlp.down_proj.weight": matrix(hidden, width),
        }
    return weights


def tiny_scores(token_ids: list[int]) -> Tensor:
    """The log-probabilities of what follows each token, by a model of its own: [tokens, vocab]."""
    other = Runner(SPEC, random_weights(), num_blocks=64, block_size=16)
    row = RowInput(0, 0, token_ids, 0, list(range(-(-len(token_ids) // 16))), None, 0)
    return other.logits([row])[0].log_softmax(-1)


def counting_runner(blocks: int, config: EngineConfig) -> Any:
    """The tiny model's runner, which counts its ``steps``, and the ``tokens`` that it computed."""
    settled = SettledConfig.on_cpu(config)
    runner: Any = model_runner(
        SPEC,
        random_weights(),
        num_blocks=blocks,
        block_size=settled.block_size,
        step_tokens=settled.step_tokens,
        max_num_seqs=settled.max_num_seqs,
        threads=1,
        precision="float32" if settled.precision == "auto" else settled.precision,
        strict=settled.strict,
    )
    runner.steps = runner.tokens = 0
    begin = getattr(runner, begins_by(runner))

    def counted(rows: Sequence[RowInput], abandon: Callable[[], bool] | None = None) -> Any:
        begun = begin(rows, abandon)
        runner.steps += 1
        runner.tokens += sum(len(row.token_ids) for row in rows)
        return begun

    setattr(runner, begins_by(runner), counted)
    return runner


class TinyBench:
    """A `LocalEngine` over the tiny model. ``template`` says how its family calls tools."""

    def __init__(self, config: EngineConfig = SMALL, *, blocks: int = 64, template: str = "") -> None:
        self.config, self.blocks = config, blocks
        self.runners: list[Any] = []
        self.syntax: ToolSyntax = tool_syntax(template, lambda text: [text])
        self.engine = LocalEngine(self.open_model, config)

    @property
    def runner(self) -> Any:
        return self.runners[-1]

    def encode(self, text: str) -> list[int]:
        return TinyTokenizer().encode_prompt(text)

    def open_model(self, config: EngineConfig) -> LoadedModel:
        self.runners.append(counting_runner(self.blocks, config))
        tokenizer = TinyTokenizer()
        return LoadedModel(
            name="tiny",
            runner=self.runner,
            tokenizer=tokenizer,
            encode_chat=lambda messages, tools=(): tokenizer.encode_prompt(
                "".join(str(message["content"]) for message in messages)[-40:]
            ),
            context=SPEC.max_position,
            threads=1,
            tool_syntax=self.syntax,
            structures=StructureCompiler(tokenizer, SPEC.vocab_size, tokenizer.eos_ids),
        )

    def read(self, stream: DeltaStream) -> asyncio.Task[list[Delta]]:
        async def all_of_it() -> list[Delta]:
            return [delta async for delta in stream]

        return asyncio.create_task(all_of_it())

    async def until(self, condition: object) -> None:
        async with asyncio.timeout(30):
            while not condition():  # type: ignore[operator]  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def idle(self) -> None:
        """Wait until the engine holds nothing."""
        await self.until(lambda: self.engine.stats()["blocks"]["free"] == self.blocks)
        assert not any(self.engine.stats()["waiting"].values())
