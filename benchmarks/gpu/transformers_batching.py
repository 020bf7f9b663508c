"""Transformers' continuous batching on the same requests and a model of the same shape, where it is installed.

It chooses by itself how to attend, whether it records graphs, and how large its cache is; the number of requests
that run at once is ours. What keeps it from running is said, and is no failure of ours.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import torch
from engines.workload import Request

from gpu.figures import Figure, told
from gpu.lab import Lab
from gpu.mixed_workload import model_of, requests_of, warm_up
from orchestra.localengine.models.spec import ModelSpec

__all__ = ["run"]


def run(lab: Lab) -> Iterator[Figure]:
    """Measure it, or say why not."""
    name, spec = model_of(lab)
    what = f"transformers' continuous batching {name}"
    if importlib.util.find_spec("transformers") is None:
        yield Figure(what=what, note="left out: transformers is not installed")
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    requests, slots = requests_of(lab, spec.vocab_size)
    try:
        seconds, version = _serve(lab, spec, requests, slots)
    except Exception as error:  # whatever a peer throws is its own affair
        yield Figure(what=what, note=f"left out: {told(error)}")
        return
    output = sum(request.max_tokens for request in requests)
    what = f"{what}, {len(requests)} requests, {slots} at once"
    note = f"{seconds:.1f} s, transformers {version}"
    yield Figure(what=what, value=output / seconds, unit="tokens/s", note=note)


def _serve(lab: Lab, spec: ModelSpec, requests: Sequence[Request], slots: int) -> tuple[float, str]:
    import transformers
    from transformers import ContinuousBatchingConfig, GenerationConfig

    wanted: dict[str, Any] = {"max_requests_per_batch": slots, "max_memory_percent": 0.6}
    if lab.rehearsal:
        wanted |= {"num_blocks": 32, "page_size": 32, "max_batch_tokens": 64, "use_cuda_graph": False}
        wanted |= {"max_blocks_per_request": 0, "use_async_batching": False}
    known = {field.name for field in fields(ContinuousBatchingConfig)}
    settings = ContinuousBatchingConfig(**{name: value for name, value in wanted.items() if name in known})
    model = _model(lab, spec)
    generation = GenerationConfig(do_sample=False, max_new_tokens=256, eos_token_id=-1, pad_token_id=0)
    with torch.inference_mode():
        manager = model.init_continuous_batching(generation, settings)
        manager.start()
        try:
            _answers(lab, manager, "warm-up", warm_up(requests))
            began = time.perf_counter()
            _answers(lab, manager, "request", requests)
            seconds = time.perf_counter() - began
        finally:
            manager.stop(block=True, timeout=10.0)
    return seconds, transformers.__version__


def _model(lab: Lab, spec: ModelSpec) -> Any:
    """A Llama of that shape, with whatever weights it is made with."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=8192,
        tie_word_embeddings=spec.tie_embeddings,
        attn_implementation="sdpa",
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if lab.rehearsal else lab.dtype)
    try:
        with torch.device(lab.device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def _answers(lab: Lab, manager: Any, name: str, requests: Sequence[Request]) -> None:
    """Ask for all at once, and wait for all. Raises RuntimeError or TimeoutError where they do not come."""
    for number, request in enumerate(requests):
        manager.add_request(list(request.prompt), f"{name}-{number}", max_new_tokens=request.max_tokens)
    left = len(requests)
    while left:
        if lab.time_left < 0:
            raise TimeoutError("it was not done in time")
        result = manager.get_result(timeout=1.0)
        if result is not None and result.is_finished():
            if result.error:
                raise RuntimeError(result.error)
            number = int(result.request_id.rpartition("-")[2])
            if len(result.generated_tokens) != requests[number].max_tokens:
                raise RuntimeError(f"{len(result.generated_tokens)} tokens, not {requests[number].max_tokens}")
            left -= 1
        elif result is None and not manager.is_running():
            raise RuntimeError("its loop has ended")
