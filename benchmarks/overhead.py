"""What a call costs the client: CPU time, rate and latency, through several clients in one run.

    python benchmarks/overhead.py                      # plain calls at 1, 64 and 512 at once
    python benchmarks/overhead.py --stream             # the same, answers streamed in 20 pieces

The provider is a process of its own that answers at once, over the loopback interface. Each row is a fresh
process, so that no client pays for what another left behind; rows of one concurrency take turns, ``--rounds``
times, and medians count: on a busy machine, ratios within a run say more than microseconds. ``ours`` is OpenAI's
SDK over ``orc.http_client()``, with limits that never bind, so the whole of the admission is in it; ``openai`` is
the same SDK over its own client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from mixed.peers import CLIENTS as PEERS
from peer_environment import NotInstalled

PIECES = 20
REQUEST: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "word " * 50}],
    "max_tokens": 32,
}
TARGETS = {1: 1.15, 64: 1.15, 512: 0.5}
"""Ours over the SDK's own client, in CPU time a call."""

Ask = Callable[[], Awaitable[None]]


# --- The provider ----------------------------------------------------------------------------------------------


def answers() -> tuple[bytes, list[bytes]]:
    """Return a whole answer, and the pieces of a streamed one."""
    usage = {"prompt_tokens": 55, "completion_tokens": PIECES, "total_tokens": 55 + PIECES}
    head = {"id": "chatcmpl-1", "created": 1, "model": "m"}
    choice = {"index": 0, "message": {"role": "assistant", "content": "word " * PIECES}, "finish_reason": "stop"}
    whole = json.dumps({**head, "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *[{"content": "word "}] * PIECES]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    chunks.append({"choices": [], "usage": usage})
    lines = [json.dumps({**head, "object": "chat.completion.chunk", **chunk}) for chunk in chunks]
    return whole, [f"data: {line}\n\n".encode() for line in (*lines, "[DONE]")]


async def serve() -> None:
    """Answer every request at once, until standard input ends."""
    from aiohttp import web

    whole, pieces = answers()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if b'"stream":true' not in (await request.read()).replace(b" ", b""):
            return web.Response(body=whole, content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response

    server = await asyncio.get_running_loop().create_server(web.Server(handle, access_log=None), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)


# --- The clients -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def ours(base_url: str, at_once: int, stream: bool) -> AsyncIterator[Ask]:
    import orchestra

    limits = {"requests_per_minute": 1e9, "tokens_per_minute": 1e12, "max_concurrency": 100_000}
    account = {"kind": "openai-compatible", "base_url": base_url, "limits": [limits]}
    async with (
        orchestra.Orchestra.from_config({"providers": {"account": account}}) as orc,
        _sdk(base_url, stream, http_client=orc.http_client()) as ask,
    ):
        yield ask


@asynccontextmanager
async def openai_sdk(base_url: str, at_once: int, stream: bool) -> AsyncIterator[Ask]:
    async with _sdk(base_url, stream) as ask:
        yield ask


@asynccontextmanager
async def _sdk(base_url: str, stream: bool, **options: Any) -> AsyncIterator[Ask]:
    import openai

    # by default it gives up to connect after five seconds, which 512 at once may take it on a slow machine
    async with openai.AsyncOpenAI(
        base_url=base_url, api_key="any", max_retries=0, timeout=600, **options
    ) as client:

        async def whole() -> None:
            await client.chat.completions.create(**REQUEST)

        async def streamed() -> None:
            count = 0
            async with await client.chat.completions.create(**REQUEST, stream=True) as deltas:
                async for _ in deltas:
                    count += 1
            if count < PIECES:
                raise RuntimeError(f"only {count} pieces came")

        yield streamed if stream else whole


@asynccontextmanager
async def bare_httpx2(base_url: str, at_once: int, stream: bool) -> AsyncIterator[Ask]:
    import httpx2

    body = {**REQUEST, "stream": stream}
    limits = httpx2.Limits(max_connections=at_once, max_keepalive_connections=at_once)
    async with httpx2.AsyncClient(limits=limits, timeout=60) as client:

        async def ask() -> None:
            async with client.stream("POST", f"{base_url}/chat/completions", json=body) as response:
                async for _ in response.aiter_raw():
                    pass

        yield ask


@asynccontextmanager
async def bare_aiohttp(base_url: str, at_once: int, stream: bool) -> AsyncIterator[Ask]:
    import aiohttp

    body = {**REQUEST, "stream": stream}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=at_once)) as session:

        async def ask() -> None:
            async with session.post(f"{base_url}/chat/completions", json=body) as response:
                async for _ in response.content.iter_any():
                    pass

        yield ask


@asynccontextmanager
async def litellm(base_url: str, at_once: int, stream: bool) -> AsyncIterator[Ask]:
    import litellm

    litellm.suppress_debug_info = True
    request = {**REQUEST, "model": "openai/m", "api_base": base_url, "api_key": "any"}

    async def ask() -> None:
        answer = await litellm.acompletion(**request, stream=stream)
        if stream:
            async for _ in answer:
                pass

    yield ask


CLIENTS = {
    "ours": ours,
    "openai": openai_sdk,
    "httpx2": bare_httpx2,
    "aiohttp": bare_aiohttp,
    "litellm": litellm,
}


async def measure(client: str, base_url: str, at_once: int, calls: int, stream: bool) -> dict[str, Any]:
    """Make ``calls`` calls, ``at_once`` at a time, after as many as it takes to have all connections open."""
    latencies: list[float] = []
    async with AsyncExitStack() as stack:
        ask = await stack.enter_async_context(CLIENTS[client](base_url, at_once, stream))

        async def work(count: int) -> None:
            for _ in range(count):
                started = time.perf_counter()
                await ask()
                latencies.append(time.perf_counter() - started)

        async def together(total: int) -> None:
            each, more = divmod(total, at_once)
            await asyncio.gather(*(work(each + (number < more)) for number in range(at_once)))

        await together(max(50, 2 * at_once))
        latencies.clear()
        cpu, started = time.process_time(), time.perf_counter()
        await together(calls)
        cpu, seconds = time.process_time() - cpu, time.perf_counter() - started
    latencies.sort()
    return {
        "cpu_us": round(cpu / calls * 1e6),
        "per_second": round(calls / seconds),
        "p50_ms": round(latencies[len(latencies) // 2] * 1e3, 2),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)] * 1e3, 2),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


# --- The run ---------------------------------------------------------------------------------------------------


def run(client: str, base_url: str, at_once: int, calls: int, stream: bool) -> dict[str, Any]:
    """Measure one client in a process of its own. Raises NotInstalled where it is not to be had."""
    command = [sys.executable, __file__]
    if client in PEERS and client not in ("openai", "orchestra"):
        command = [PEERS[client].command()[0], __file__]
    given = json.dumps([client, base_url, at_once, calls, stream])
    done = subprocess.run([*command, "--child", given], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotInstalled((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def main() -> None:
    options = _parser().parse_args()
    if options.serve:
        return asyncio.run(serve())
    if options.child:
        return print(json.dumps(asyncio.run(measure(*json.loads(options.child)))))
    provider = subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert provider.stdin is not None
    assert provider.stdout is not None
    base_url = provider.stdout.readline().strip()
    missed = False
    for at_once in options.at_once or TARGETS:
        results: dict[str, list[dict[str, Any]]] = {}
        for _ in range(options.rounds):
            for client in options.only or CLIENTS:
                try:
                    one = run(client, base_url, at_once, options.calls, options.stream)
                except NotInstalled as error:
                    print(f"{client}: not measured: {error}", file=sys.stderr)
                    continue
                results.setdefault(client, []).append(one)
        medians = {
            client: {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
            for client, rounds in results.items()
        }
        for client, median in medians.items():
            machine = {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()}
            row = {"benchmark": "overhead", "stream": options.stream, "at_once": at_once, "client": client}
            print(json.dumps({**row, **median, "rounds": options.rounds, "machine": machine}), flush=True)
        missed |= not _judge(at_once, medians)
    provider.stdin.close()
    provider.wait()
    sys.exit(1 if missed else 0)


def _judge(at_once: int, medians: dict[str, dict[str, Any]]) -> bool:
    """Say how ours compares with the SDK's own client. Return whether it is as it should be."""
    if not {"ours", "openai"} <= medians.keys():
        return True
    ratio = medians["ours"]["cpu_us"] / medians["openai"]["cpu_us"]
    most = TARGETS.get(at_once)
    holds = most is None or ratio <= most
    asked = "" if most is None else f", asked <= {most:g}: {'yes' if holds else 'NO'}"
    print(f"{at_once} at once: {ratio:.2f} of the SDK's own client in CPU time a call{asked}", file=sys.stderr)
    return holds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(CLIENTS), metavar="CLIENT", help="may be repeated")
    parser.add_argument("--at-once", action="append", type=int, metavar="N", help="may be repeated (1, 64, 512)")
    parser.add_argument("--calls", type=int, default=2000, help="of each row (default: 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="of each row (default: 3)")
    parser.add_argument("--stream", action="store_true", help="stream every answer")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
