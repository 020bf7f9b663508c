"""What is measured: names, units, labels and buckets, as data. The exporters make their instruments from it.

What OpenTelemetry's GenAI conventions name has their names, units, labels and buckets, as released in
opentelemetry-semantic-conventions 0.66 (docs/gen-ai/gen-ai-metrics.md). The rest begins with ``orchestra.``.
Every label has a bounded number of values: `orchestra.observe.measuring` sees to it. No prompt, answer, key, job
or call is among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["BY_NAME", "INSTRUMENTS", "Instrument"]

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
MODEL: Final = "gen_ai.request.model"
TOKEN_TYPE: Final = "gen_ai.token.type"
ERROR: Final = "error.type"
ACCOUNT: Final = "orchestra.account"
"""The section of ``[providers]`` that was called, or ``local``."""
TRAFFIC: Final = "orchestra.traffic"
OUTLET: Final = "orchestra.outlet"
"""``online``, ``batch``, or ``local``: an engine in this process."""
LIMIT: Final = "orchestra.limit"
"""The dimension that is limited: ``requests``, ``tokens``, ``concurrency``, ..."""
STATE: Final = "orchestra.state"
ENGINE: Final = "orchestra.engine"
"""The section of ``[local]``."""
MODELS: Final = "orchestra.models"
"""The patterns of models that share an account's limits."""
ROUTE: Final = "orchestra.route"

CALL: Final = (OPERATION, PROVIDER, MODEL, ACCOUNT, OUTLET, TRAFFIC)
POOL: Final = (ACCOUNT, MODELS, OUTLET)
SERVER: Final = (OPERATION, PROVIDER, MODEL, TRAFFIC)

_CLIENT_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TTFT_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TPOT_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_HOURS = (3600.0, 14400.0, 43200.0, 86400.0)
_QUEUE_SECONDS = (0.001, 0.01, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, *_HOURS)
"""A person waits for milliseconds, bulk for a day."""
_BULK_SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 1800.0, *_HOURS)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
_WHOLE = "Of answers that came whole: not of what broke off or was outrun, nor of lines of jobs in batches."


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric. ``unit`` is a UCUM unit; ``{call}`` and the like count things.

    ``counter`` and ``histogram`` grow with what happens; ``gauge`` and ``total`` are looked at, the latter being a
    sum that somebody else keeps.
    """

    name: str
    kind: Literal["counter", "histogram", "gauge", "total"]
    unit: str
    description: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()


INSTRUMENTS: Final = (
    Instrument(
        "gen_ai.client.operation.duration",
        "histogram",
        "s",
        "GenAI operation duration: of a call with its queue and its retries.",
        (*CALL, ERROR),
        _CLIENT_SECONDS,
    ),
    Instrument(
        "gen_ai.client.operation.time_to_first_chunk",
        "histogram",
        "s",
        "Time to receive the first chunk of a streamed answer, from when its request was sent.",
        CALL,
        _CLIENT_SECONDS,
    ),
    Instrument(
        "gen_ai.client.token.usage",
        "histogram",
        "{token}",
        f"Number of input and output tokens used. {_WHOLE}",
        (*CALL, TOKEN_TYPE),
        _TOKENS,
    ),
    Instrument(
        "gen_ai.server.request.duration",
        "histogram",
        "s",
        "Generative AI server request duration: of a completion by an engine in this process.",
        SERVER,
        _CLIENT_SECONDS,
    ),
    Instrument(
        "gen_ai.server.time_to_first_token",
        "histogram",
        "s",
        "Time to generate first token, from when an engine in this process took the request in.",
        SERVER,
        _TTFT_SECONDS,
    ),
    Instrument(
        "gen_ai.server.time_per_output_token",
        "histogram",
        "s",
        "Time per output token generated after the first token for successful responses.",
        SERVER,
        _TPOT_SECONDS,
    ),
    Instrument(
        "orchestra.bulk.duration",
        "histogram",
        "s",
        "Operation duration of bulk calls, in buckets up to a day: some wait for limits, or ride in a batch.",
        (*CALL, ERROR),
        _BULK_SECONDS,
    ),
    Instrument(
        "orchestra.queue.duration",
        "histogram",
        "s",
        "How long an attempt waited for the budget, or for an engine's next step.",
        CALL,
        _QUEUE_SECONDS,
    ),
    Instrument(
        "orchestra.retries",
        "counter",
        "{attempt}",
        "Attempts after the first: retried, fell_back to another route, or hedged.",
        (*CALL, STATE, ERROR),
    ),
    Instrument(
        "orchestra.refusals", "counter", "{attempt}", "Attempts that the budget did not let go.", (*CALL, ERROR)
    ),
    Instrument(
        "orchestra.pool.granted",
        "counter",
        "{attempt}",
        "Attempts that an account's limits let go. Batches are not among them.",
        CALL,
    ),
    Instrument(
        "orchestra.pauses",
        "counter",
        "{pause}",
        "How often a provider said that an account is spent.",
        (*CALL, ERROR),
    ),
    Instrument(
        "orchestra.unmetered", "counter", "{call}", "Calls to hosts that are not configured.", (OPERATION, TRAFFIC)
    ),
    Instrument(
        "orchestra.cost.usd",
        "counter",
        "{USD}",
        f"What answers cost, where a price is known. {_WHOLE}",
        CALL,
    ),
    Instrument("orchestra.tokens.cached", "counter", "{token}", "Input tokens that a prompt cache had.", CALL),
    # looked at
    Instrument(
        "orchestra.pool.waiting", "gauge", "{call}", "Calls that wait for an account's limits.", (*POOL, TRAFFIC)
    ),
    Instrument("orchestra.pool.in_use", "gauge", "{call}", "Calls that are under way.", (*POOL, TRAFFIC)),
    Instrument("orchestra.pool.paused", "gauge", "{pool}", "Pools that are paused.", POOL),
    Instrument("orchestra.limit.size", "gauge", "{unit}", "What a limit allows in its window.", (*POOL, LIMIT)),
    Instrument("orchestra.limit.used", "gauge", "{unit}", "How much of a limit is used.", (*POOL, LIMIT)),
    Instrument(
        "orchestra.limit.available", "gauge", "{unit}", "How much of a limit is there at once.", (*POOL, LIMIT)
    ),
    Instrument(
        "orchestra.route.state",
        "gauge",
        "{route}",
        "1 for the state that a route's breaker is in.",
        (ROUTE, STATE),
    ),
    Instrument("orchestra.batch.open", "gauge", "{batch}", "Batches that are not over.", (ACCOUNT, STATE)),
    Instrument("orchestra.batch.riding", "gauge", "{line}", "Lines on their way in batches.", (ACCOUNT, STATE)),
    Instrument(
        "orchestra.engine.running", "gauge", "{request}", "Requests that an engine computes.", (ENGINE, TRAFFIC)
    ),
    Instrument(
        "orchestra.engine.waiting", "gauge", "{request}", "Requests that wait for an engine.", (ENGINE, TRAFFIC)
    ),
    Instrument("orchestra.engine.slots", "gauge", "{request}", "The most that it computes together.", (ENGINE,)),
    Instrument(
        "orchestra.engine.occupancy",
        "gauge",
        "1",
        "The share of the slots filled, in the latest steps.",
        (ENGINE,),
    ),
    Instrument(
        "orchestra.engine.blocks",
        "gauge",
        "{block}",
        "Blocks of the KV cache: all, and free ones.",
        (ENGINE, STATE),
    ),
    Instrument(
        "orchestra.engine.tokens",
        "total",
        "{token}",
        "Tokens that an engine computed: input is prompts, output is what it drew.",
        (ENGINE, TOKEN_TYPE),
    ),
    Instrument(
        "orchestra.engine.prompt.tokens", "total", "{token}", "Tokens of prompts that began.", (ENGINE, TRAFFIC)
    ),
    Instrument(
        "orchestra.engine.prompt.cached",
        "total",
        "{token}",
        "Those of them that the prefix cache had.",
        (ENGINE, TRAFFIC),
    ),
    Instrument("orchestra.engine.steps", "total", "{step}", "Steps that an engine ran.", (ENGINE,)),
    Instrument(
        "orchestra.engine.displacements",
        "total",
        "{request}",
        "How often a request let go of its place for another.",
        (ENGINE,),
    ),
    Instrument(
        "orchestra.engine.evictions", "total", "{block}", "Blocks of the prefix cache that were reused.", (ENGINE,)
    ),
)

BY_NAME: Final = {one.name: one for one in INSTRUMENTS}
