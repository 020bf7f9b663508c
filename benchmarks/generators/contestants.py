"""The load generators that are compared: how each is told the workload, and where it leaves its results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engines.contestants import VLLM
from peer_environment import PeerEnvironment

from generators.figures import Figures, Unreadable, of_aiperf, of_orchestra, of_vllm
from generators.servers import Server
from generators.workload import Workload

__all__ = ["GENERATORS", "Generator", "GeneratorFailed"]

_AIPERF = PeerEnvironment(("aiperf==0.13.0",))
_PATIENCE = 300.0  # seconds beside the load, to start and to end
_VLLM_BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""What ``vllm bench serve`` does; the command itself does not start in the build for CPUs."""


class GeneratorFailed(Exception):
    """A generator did not come to its end, or not to a result. The message is its last word."""


@dataclass(frozen=True, slots=True)
class Generator:
    """``command`` takes the workload, the server and an empty folder; ``result`` is the file that it leaves there.

    ``variables`` are those of its process, beside the caller's own.
    """

    name: str
    command: Callable[[Workload, Server, Path], list[str]]
    result: str
    read: Callable[[Mapping[str, Any], int], Figures]
    variables: Mapping[str, str]

    def run(self, workload: Workload, server: Server) -> Figures:
        """Send the load and return what is said of it. Raises NotInstalled and GeneratorFailed."""
        with TemporaryDirectory() as name:
            folder = Path(name)
            try:
                said, complained = _run(
                    self.command(workload, server, folder),
                    folder,
                    {**os.environ, **self.variables},
                    workload.seconds + _PATIENCE,
                )
            except subprocess.TimeoutExpired:
                raise GeneratorFailed("it did not come to its end") from None
            result = folder / self.result
            if not result.exists():
                last = (complained or said).strip().splitlines()[-1:] or ["it said nothing"]
                raise GeneratorFailed(last[0])
            try:
                return self.read(json.loads(result.read_text()), workload.calls)
            except (Unreadable, KeyError, TypeError, ValueError) as error:
                raise GeneratorFailed(f"its results are not as expected: {error!r}") from None


def _run(command: Sequence[str], folder: Path, variables: Mapping[str, str], limit: float) -> tuple[str, str]:
    """Return what a command wrote to both outputs. Whatever ends it, the processes that it started end with it."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            return process.communicate(timeout=limit)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # it was not waited for yet: the number is still its own
            raise


def _orchestra(workload: Workload, server: Server, folder: Path) -> list[str]:
    half_a_gap = 0.5 / workload.rate  # so that rounding neither adds nor drops the call at an end of the window
    load = {
        "--rates": workload.rate,
        "--arrivals": "constant",
        "--warm-up": workload.warm_up / workload.rate + half_a_gap,
        "--seconds": workload.seconds,
        "--prompt": workload.prompt_tokens,
        "--output": workload.output_tokens,
        "--body": json.dumps({"temperature": 0, "ignore_eos": True}),
    }
    target = ["--url", f"{server.origin}/v1", "--model", server.model, "--json", str(folder / "ours.json")]
    return [sys.executable, "-m", "orchestra", "bench", *target, *_flags(load)]


def _vllm(workload: Workload, server: Server, folder: Path) -> list[str]:
    load = {
        "--request-rate": workload.rate,
        "--burstiness": "inf",  # evenly apart
        "--num-prompts": workload.calls,
        "--dataset-name": "random",
        "--random-input-len": workload.prompt_tokens,
        "--random-output-len": workload.output_tokens,
        "--temperature": 0,
        "--metric-percentiles": "50,95",
        "--result-filename": folder / "theirs.json",
    }
    target = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", server.origin]
    names = ["--model", server.model, "--tokenizer", str(server.tokenizer)]
    python = str(VLLM.interpreter())
    return [python, "-c", _VLLM_BENCH, *target, *names, *_flags(load), "--save-result", "--disable-tqdm"]


def _aiperf(workload: Workload, server: Server, folder: Path) -> list[str]:
    load = {
        "--request-rate": workload.rate,
        "--request-rate-mode": "constant",
        "--request-count": workload.calls,
        "--warmup-request-count": 1,
        "--isl": workload.prompt_tokens,
        "--isl-stddev": 0,
        "--osl": workload.output_tokens,
        "--osl-stddev": 0,
        "--workers-max": 1,
        "--record-processor-service-count": 1,
        "--output-artifact-dir": folder,
        "--ui": "none",
    }
    target = ["--model", server.model, "--url", server.origin, "--tokenizer", str(server.tokenizer)]
    extra = ["--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"]
    how = ["--endpoint-type", "chat", "--streaming", "--use-server-token-count"]
    quiet = ["--no-server-metrics", "--no-gpu-telemetry"]
    command = str(_AIPERF.interpreter().parent / "aiperf")
    return [command, "profile", *target, *how, *_flags(load), *extra, *quiet]


def _flags(options: Mapping[str, object]) -> list[str]:
    return [str(part) for option in options.items() for part in option]


_OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
GENERATORS = {
    generator.name: generator
    for generator in (
        Generator("orchestra bench", _orchestra, "ours.json", of_orchestra, {}),
        Generator("vllm bench serve", _vllm, "theirs.json", of_vllm, _OFFLINE),
        # offline it takes no folder for a tokenizer
        Generator("aiperf", _aiperf, "profile_export_aiperf.json", of_aiperf, {"DO_NOT_TRACK": "1"}),
    )
}
"""Every generator by its name: ours, then those of others."""
