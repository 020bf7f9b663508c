"""``python -m orchestra.testing --port 0``: a scripted provider in a process of its own, which can be killed.

Prints one JSON line, ``{"base_url": ..., "origin": ...}``, when it listens, and serves until it is ended. OpenAI
SDKs take the first as their base URL, Anthropic SDKs the second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from orchestra.testing import Limits, Reply, StreamScript, Tenant
from orchestra.testing.limiter import ChargeRule, HeaderStyle, HintStyle

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
    options = _parser().parse_args()
    limits = Limits(
        requests_per_minute=options.requests_per_minute,
        tokens_per_minute=options.tokens_per_minute,
        input_tokens_per_minute=options.input_tokens_per_minute,
        output_tokens_per_minute=options.output_tokens_per_minute,
        max_concurrency=options.max_concurrency,
        burst_seconds=options.burst_seconds,
        charge=options.charge,
        headers=options.headers,
        hint=options.hint,
    )
    changes = [
        (at, replace(limits, requests_per_minute=requests, tokens_per_minute=tokens))
        for at, requests, tokens in options.change
    ]
    tenant = Tenant(options.tenant_share, options.tenant_on, options.tenant_off) if options.tenant_share else None
    provider = ScriptedProvider(
        default=Reply(stream=StreamScript(chunks=["word "] * options.chunks, gap=options.gap)),
        service_time=options.service_time,
        limits=limits,
        changes=changes,
        tenant=tenant,
        tokens_per_character=options.tokens_per_character,
        port=options.port,
    )
    try:
        asyncio.run(_serve(provider))
    except KeyboardInterrupt:
        pass


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m orchestra.testing", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--service-time", type=float, default=0.0, metavar="SECONDS", help="before each answer")
    parser.add_argument("--gap", type=float, default=0.0, metavar="SECONDS", help="after each chunk of a stream")
    parser.add_argument("--chunks", type=int, default=4, help="chunks of a streamed answer")
    for metric in ("requests", "tokens", "input-tokens", "output-tokens"):
        parser.add_argument(f"--{metric}-per-minute", type=float, default=None, metavar="N")
    parser.add_argument("--max-concurrency", type=int, default=None, metavar="N")
    parser.add_argument("--burst-seconds", type=float, default=60.0, help="how much refill the limits hold")
    parser.add_argument("--charge", choices=get_args(ChargeRule), default="bound", help="how tokens are counted")
    parser.add_argument("--headers", choices=get_args(HeaderStyle), default="limits", help="what answers tell")
    parser.add_argument("--hint", choices=get_args(HintStyle), default="seconds", help="how refusals say when")
    parser.add_argument("--tokens-per-character", type=float, default=0.25, metavar="N")
    parser.add_argument(
        "--change",
        type=float,
        nargs=3,
        action="append",
        default=[],
        metavar=("SECONDS", "REQUESTS", "TOKENS"),
        help="other limits a minute from so many seconds after the start on; may be repeated",
    )
    parser.add_argument("--tenant-share", type=float, default=0.0, help="what another tenant takes of the refill")
    parser.add_argument("--tenant-on", type=float, default=math.inf, metavar="SECONDS", help="for so long ...")
    parser.add_argument("--tenant-off", type=float, default=0.0, metavar="SECONDS", help="... and then not")
    return parser


async def _serve(provider: ScriptedProvider) -> None:
    async with provider:
        print(json.dumps({"base_url": provider.base_url, "origin": provider.origin}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
