"""Transformers' continuous batching.

Left alone it sizes its cache from the free memory and takes 8,192 tokens in a step, so that every request waits
for all prompts. What it is given here was its best of those tried on two cores.
"""

from __future__ import annotations

import time

import torch
from harness import Answer, Request, answer, measure, read_job
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig


def main() -> None:
    job = read_job()
    torch.set_num_threads(job["threads"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype="float32", attn_implementation="sdpa")
    manager = model.init_continuous_batching(
        GenerationConfig(do_sample=False, max_new_tokens=256, eos_token_id=-1, pad_token_id=0),
        ContinuousBatchingConfig(
            page_size=32,
            num_blocks=512,
            max_batch_tokens=512,
            max_requests_per_batch=job["settings"]["max_num_seqs"],
            max_blocks_per_request=0,
            use_cuda_graph=False,
            use_async_batching=False,
        ),
    )
    numbers = iter(range(1 << 30))

    def serve(requests: list[Request]) -> list[Answer]:
        names = [f"request-{next(numbers)}" for _ in requests]
        for name, request in zip(names, requests, strict=True):
            manager.add_request(request.prompt, name, max_new_tokens=request.max_tokens)
        answers: dict[str, Answer] = {}
        while len(answers) < len(requests):
            result = manager.get_result(timeout=1.0)
            if result is not None and result.is_finished():
                if result.error:
                    raise SystemExit(result.error)
                answers[result.request_id] = Answer(list(result.generated_tokens), time.perf_counter())
            elif result is None and not manager.is_running():
                raise SystemExit("its loop has ended")
        return [answers[name] for name in names]

    with torch.inference_mode():
        manager.start()
        try:
            figures = measure(job, serve)
        finally:
            manager.stop(block=True, hard_stop=True)
    answer(figures)


if __name__ == "__main__":
    main()
