"""``python -m orchestra.testing --port 0``: a scripted provider in a process of its own, which can be killed.

Prints one JSON line, ``{"base_url": ...}``, when it listens, and serves until it is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING

from orchestra.testing import Limits, Reply, StreamScript

if TYPE_CHECKING:
    from orchestra.testing import ScriptedProvider


def main() -> None:
    try:
        from orchestra.testing import ScriptedProvider
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    parser = argparse.ArgumentParser(prog="python -m orchestra.testing", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--service-time", type=float, default=0.0, metavar="SECONDS", help="before each answer")
    parser.add_argument("--gap", type=float, default=0.0, metavar="SECONDS", help="after each chunk of a stream")
    parser.add_argument("--chunks", type=int, default=4, help="chunks of a streamed answer")
    parser.add_argument("--requests-per-minute", type=float, default=None)
    parser.add_argument("--tokens-per-minute", type=float, default=None)
    parser.add_argument("--max-concurrency", type=int, default=None)
    options = parser.parse_args()
    limits = Limits(options.requests_per_minute, options.tokens_per_minute, options.max_concurrency)
    stream = StreamScript(chunks=["word "] * options.chunks, gap=options.gap)
    provider = ScriptedProvider(
        default=Reply(stream=stream), service_time=options.service_time, limits=limits, port=options.port
    )
    try:
        asyncio.run(_serve(provider))
    except KeyboardInterrupt:
        pass


async def _serve(provider: ScriptedProvider) -> None:
    async with provider:
        print(json.dumps({"base_url": provider.base_url}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
