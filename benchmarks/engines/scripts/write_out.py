"""A GGUF file as a folder of float32 safetensors, which is what the peers read."""

from __future__ import annotations

from pathlib import Path

from harness import answer, read_job
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    job = read_job()
    gguf, folder = Path(job["model"]), job["folder"]
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
    # a model read from a GGUF believes itself quantised, and would refuse
    del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
    answer({})


if __name__ == "__main__":
    main()
