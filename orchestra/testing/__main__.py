"""``python -m orchestra.testing --port 0``: a scripted provider in a process of its own, which can be killed.

Prints one JSON line, ``{"base_url": ..., "origin": ..., "bills": ...}``, when it listens, and serves until it is
ended. OpenAI SDKs take the first as their base URL, Anthropic SDKs the second. Without options it allows
everything, and answers and ends batches at once. GET the third, from this machine, to learn what was paid;
``orchestra.testing.control`` says what else it can be told while it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from orchestra.testing import (
    BatchFaults,
    BatchLimits,
    BatchScript,
    Limits,
    Reply,
    ScriptedProvider,
    StreamScript,
    Tenant,
)
from orchestra.testing.limiter import ChargeRule, HeaderStyle, HintStyle
from orchestra.testing.script import prompt_of

_ENDS = ("completed", "expired", "cancelled", "failed", "never")


def main() -> None:
    options = read_options()
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
    text: str | Callable[[Mapping[str, Any]], str] = _last_message if options.echo else options.text
    provider = ScriptedProvider(
        default=Reply(stream=StreamScript(chunks=["word "] * options.chunks, gap=options.gap)),
        text=text,
        service_time=options.service_time,
        limits=limits,
        changes=changes,
        tenant=Tenant(options.tenant_share, options.tenant_on, options.tenant_off)
        if options.tenant_share
        else None,
        tokens_per_character=options.tokens_per_character,
        batch_default=_batch_script(options),
        batch_limits=BatchLimits(
            enqueued_tokens=options.batch_enqueued_tokens,
            enqueued_requests=options.batch_enqueued_requests,
            creations_per_hour=options.batch_creations_per_hour,
        ),
        batch_faults=BatchFaults(
            lost_creations=options.lost_creations,
            refused_polls=options.refused_polls,
            lost_uploads=options.lost_uploads,
            cut_results=options.cut_results,
            seed=options.seed,
        ),
        background_default=BatchScript(
            validating=options.background_queued,
            running=options.background_seconds,
            end=options.background_end,
        ),
        file_delay=options.file_delay,
        keep_log=False,
        accounts=dict(key.partition("=")[::2] for key in options.key) or None,
        port=options.port,
    )
    try:
        asyncio.run(_serve(provider))
    except KeyboardInterrupt:
        pass


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what the command was told. Ends the process with the reason where that makes no sense."""
    return _parser().parse_args(arguments)


def _batch_script(options: argparse.Namespace) -> BatchScript:
    return BatchScript(
        validating=options.batch_validating,
        running=options.batch_seconds,
        finalizing=options.batch_finalizing,
        cancelling=options.batch_cancelling,
        end=options.batch_end,
        answered=options.batch_answered,
        shuffle=options.batch_shuffle,
    )


def _end(text: str) -> str | None:
    """Return the status that a batch ends with, None where it never does."""
    if text in _ENDS:
        return None if text == "never" else text
    kind, _, status = text.partition(":")
    if kind != "other" or not status:
        raise argparse.ArgumentTypeError(f"must be {', '.join(_ENDS)} or other:WORD, not {text!r}")
    return status


def _number(text: str, wanted: str, is_one: Callable[[float], bool]) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and is_one(number)):
        raise argparse.ArgumentTypeError(f"must be {wanted}, not {text!r}")
    return number


def _at_least_0(text: str) -> float:
    return _number(text, "a number of 0 or more", lambda number: number >= 0)


def _above_0(text: str) -> float:
    return _number(text, "a number above 0", lambda number: number > 0)


def _share(text: str) -> float:
    return _number(text, "a share from 0 to 1", lambda number: 0 <= number <= 1)


def _count(text: str) -> int:
    return int(_number(text, "a whole number of 1 or more", lambda number: number >= 1 and number.is_integer()))


def _lines(text: str) -> float:
    return _share(text) if "." in text or text == "0" else _count(text)


def _port(text: str) -> int:
    return int(_number(text, "a port, up to 65535", lambda number: 0 <= number < 65536 and number.is_integer()))


def _last_message(payload: Mapping[str, Any]) -> str:
    """Return the text that a request ends with, so that whoever asked can tell that the answer is its own."""
    said = prompt_of(payload)
    last = said[-1] if isinstance(said, list) and said else said
    if isinstance(last, dict):
        last = last.get("content", last.get("parts"))
    return last if isinstance(last, str) else json.dumps(last)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m orchestra.testing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--port", type=_port, default=0, help="default: 0, one that is free, and so another at each start"
    )
    parser.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="KEY=ACCOUNT",
        help="a key that is taken, and whose account it opens; may be repeated; without any, every key is taken",
    )
    _add_answers(parser.add_argument_group("answers"))
    _add_limits(parser.add_argument_group("limits of the models"))
    _add_batches(parser.add_argument_group("batches"))
    _add_background(parser.add_argument_group("responses in the background"))
    _add_faults(parser.add_argument_group("what goes wrong with batches at random, each with a probability of P"))
    return parser


def _add_answers(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--service-time", type=_at_least_0, default=0.0, metavar="SECONDS", help="before each answer"
    )
    group.add_argument("--text", default="Hello, world.", help="what answers say")
    group.add_argument("--echo", action="store_true", help="answers say what the last message said")
    group.add_argument(
        "--gap", type=_at_least_0, default=0.0, metavar="SECONDS", help="after each chunk of a stream"
    )
    group.add_argument("--chunks", type=_count, default=4, help="chunks of a streamed answer")
    group.add_argument(
        "--tokens-per-character",
        type=_at_least_0,
        default=0.25,
        metavar="N",
        help="how long prompts are in tokens",
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    for metric in ("requests", "tokens", "input-tokens", "output-tokens"):
        group.add_argument(f"--{metric}-per-minute", type=_above_0, default=None, metavar="N")
    group.add_argument("--max-concurrency", type=_count, default=None, metavar="N", help="requests at once")
    group.add_argument("--burst-seconds", type=_above_0, default=60.0, help="how much refill the limits hold")
    group.add_argument("--charge", choices=get_args(ChargeRule), default="bound", help="how tokens are counted")
    group.add_argument("--headers", choices=get_args(HeaderStyle), default="limits", help="what answers tell")
    group.add_argument("--hint", choices=get_args(HintStyle), default="seconds", help="how refusals say when")
    group.add_argument(
        "--change",
        type=_at_least_0,
        nargs=3,
        action="append",
        default=[],
        metavar=("SECONDS", "REQUESTS", "TOKENS"),
        help="other limits a minute from so many seconds after the start on; may be repeated",
    )
    group.add_argument("--tenant-share", type=_share, default=0.0, help="what another tenant takes of the refill")
    group.add_argument(
        "--tenant-on", type=_at_least_0, default=math.inf, metavar="SECONDS", help="for so long ..."
    )
    group.add_argument("--tenant-off", type=_at_least_0, default=0.0, metavar="SECONDS", help="... and then not")


def _add_batches(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--batch-validating", type=_at_least_0, default=0.0, metavar="SECONDS", help="before a batch runs"
    )
    group.add_argument(
        "--batch-seconds", type=_at_least_0, default=0.0, metavar="SECONDS", help="how long it runs"
    )
    group.add_argument(
        "--batch-finalizing", type=_at_least_0, default=0.0, metavar="SECONDS", help="until it has ended"
    )
    group.add_argument(
        "--batch-cancelling",
        type=_at_least_0,
        default=0.0,
        metavar="SECONDS",
        help="until a cancelled one has ended",
    )
    group.add_argument(
        "--batch-end",
        type=_end,
        default="completed",
        metavar="STATUS",
        help="completed, expired, cancelled, failed, never; or other:WORD, a status that no client knows",
    )
    group.add_argument(
        "--batch-answered",
        type=_lines,
        default=None,
        metavar="N",
        help="how many lines are ever answered, or which share (0.6); all by default",
    )
    group.add_argument("--batch-shuffle", type=int, default=None, metavar="SEED", help="results in a random order")
    group.add_argument(
        "--batch-enqueued-tokens",
        type=_count,
        default=None,
        metavar="N",
        help="OpenAI: of a model, in open batches",
    )
    group.add_argument(
        "--batch-enqueued-requests", type=_count, default=None, metavar="N", help="Anthropic: in open batches"
    )
    group.add_argument("--batch-creations-per-hour", type=_count, default=None, metavar="N")
    group.add_argument(
        "--file-delay", type=_at_least_0, default=0.0, metavar="SECONDS", help="until an uploaded file is found"
    )


def _add_background(group: argparse._ArgumentGroup) -> None:
    for name, told in (("queued", "before one is in progress"), ("seconds", "how long it is")):
        group.add_argument(f"--background-{name}", type=_at_least_0, default=0.0, metavar="SECONDS", help=told)
    group.add_argument("--background-end", type=_end, default="completed", metavar="STATUS", help="as of batches")


def _add_faults(group: argparse._ArgumentGroup) -> None:
    faults = {
        "lost-creations": "a batch is created, and nothing is answered",
        "refused-polls": "503",
        "lost-uploads": "a file is kept, and nothing is answered",
        "cut-results": "results break off on the way",
    }
    for name, told in faults.items():
        group.add_argument(f"--{name}", type=_share, default=0.0, metavar="P", help=told)
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the dice")


async def _serve(provider: ScriptedProvider) -> None:
    async with provider:
        bills = f"{provider.origin}/__orchestra/bills"
        print(json.dumps({"base_url": provider.base_url, "origin": provider.origin, "bills": bills}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
