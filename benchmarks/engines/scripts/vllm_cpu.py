"""vLLM's engine for CPUs in this process, without compilation (which takes minutes and gains little here)."""

from __future__ import annotations

import time

from harness import Answer, Request, answer, measure, read_job
from vllm import LLM, SamplingParams


def main() -> None:
    job = read_job()
    llm = LLM(
        model=job["model"],
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=job["settings"]["max_num_seqs"],
        enforce_eager=True,
    )
    engine = llm.llm_engine
    numbers = iter(range(1 << 30))

    def serve(requests: list[Request]) -> list[Answer]:
        names = [f"request-{next(numbers)}" for _ in requests]
        for name, request in zip(names, requests, strict=True):
            params = SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True)
            engine.add_request(name, {"prompt_token_ids": request.prompt}, params)
        answers: dict[str, Answer] = {}
        while engine.has_unfinished_requests():
            for result in engine.step():
                if result.finished:
                    answers[result.request_id] = Answer(list(result.outputs[0].token_ids), time.perf_counter())
        return [answers[name] for name in names]

    answer(measure(job, serve))


if __name__ == "__main__":
    main()
