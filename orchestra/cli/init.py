"""``orchestra init``: a commented orchestra.toml to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestra.errors import ConfigError

__all__ = ["TEMPLATE", "init"]

TEMPLATE = """\
# orchestra.toml: who answers which model, and how interactive and bulk calls share it.
#
# It works as it is: the model "fast" is answered by an engine inside your process, with no key and no network
# after the model was fetched once. Lines that begin with "# " followed by a setting are examples: remove the "# "
# to use them. `orchestra doctor` checks this file.


# --- Models: the names that your code asks for -----------------------------------------------------------------

[models.fast]
# Who serves it, in order of preference: "provider/model" or "local/name". The next route answers where one fails.
routes = ["local/smollm2"]
# routes = ["openai/gpt-5-mini", "local/smollm2"]


# --- The engine in your process --------------------------------------------------------------------------------

[local.smollm2]
# A model that orchestra knows how to fetch (`orchestra model list`), or the path of a .gguf file or model folder.
# Paths in this file count from its own folder, wherever you are when you use it; ~ is your home.
weights = "smollm2-135m"
# The most requests computed together in one step. Default: 16 on a CPU, 256 on a GPU.
# max_num_seqs = 16
# Memory for the KV cache, in bytes. Default: chosen by the engine.
# kv_bytes = 536_870_912
# CPU threads. Default: one for each core.
# threads = 2
# The most milliseconds that bulk may make an interactive request wait for its first step ...
# ttft_target_ms = 200
# ... and for each further token. Lower answers more evenly, higher serves more bulk.
# tpot_target_ms = 150
# Of the requests computed together, how many places bulk never takes. A place that an interactive request needs is
# made free in any case; these need no bulk request to start again. Default: 2, or an eighth of them on a GPU.
# interactive_slots = 2
# The share of the KV cache that bulk never takes, from 0 to 0.9: what was computed of interactive prompts stays
# there for others that begin alike. Default: as of the places.
# interactive_cache = 0.125
# Whether what was computed of a prompt is kept for others that begin alike.
# prefix_cache = true
# "cpu", "cuda", or one of several GPUs, as "cuda:1". "auto" is a GPU where torch and Triton find one.
# device = "auto"
# "auto" is "float32" on a CPU, and "bfloat16" on a GPU, which has "float16" as well. On a CPU there is "int8": it
# takes a quarter to a half of the memory for the model's matrices, and is quicker; but the likeliest token is
# another in one place of seven. Measure yours first: `orchestra model info NAME --precision int8 --measure`.
# precision = "auto"
# "float8", on a GPU, keeps twice as many tokens in the same KV cache as "auto", which goes with the precision.
# kv_dtype = "auto"
# On a CPU: the same bits of every logit for a request in any company. Long prompts take longer.
# strict = false
# What this machine costs in USD: jobs then say what a million tokens cost on it. Default: nobody knows.
# dollars_per_hour = 0.80


# --- Providers: accounts over HTTP -----------------------------------------------------------------------------

# [providers.openai]
# openai, azure, anthropic, gemini, mistral, groq, together, fireworks, vllm, sglang, llamacpp; or
# "openai-compatible" for any other server that speaks OpenAI's wire.
# kind = "openai"
# What the official SDK would take. Default: the kind's own address; azure and your own servers need one.
# base_url = "https://api.openai.com/v1"
# "env:NAME", "file:PATH", or the key itself. Without it the caller's own key is used, towards its own host only.
# api_key = "env:OPENAI_API_KEY"
# Tell a vllm or sglang server each call's class. It must run with priority scheduling, or it refuses the field.
# priority = false

# Limits of the account. All models whose name matches one of the patterns share them. What you leave out is
# learned from the answers; what you set is never exceeded. `orchestra limits openai` writes
# such sections, where you have an administrator's key. A provider may have several, each in double brackets;
# without `models` a section holds for all.
# [[providers.openai.limits]]
# models = ["gpt-*"]
# requests_per_minute = 600
# A limit on the sum of input and output tokens ...
# tokens_per_minute = 90_000
# ... or one for each.
# input_tokens_per_minute = 60_000
# output_tokens_per_minute = 30_000
# In any 24 hours. What was used is forgotten when the last process ends, except with a "sqlite:" budget (below).
# requests_per_day = 10_000
# tokens_per_day = 2_000_000
# input_tokens_per_day = 1_500_000
# output_tokens_per_day = 500_000
# The same in dollars, by our own count. It needs a price for every model: without one nothing is sent.
# usd_per_day = 20.0
# Calls under way at the same time.
# max_concurrency = 64
# Input tokens of all batches that are open.
# enqueued_batch_tokens = 2_000_000
# How the provider counts a minute: "refill", continuously, or "fixed", in whole minutes of which nobody tells when
# they begin.
# window = "refill"
# How many seconds' worth of refill may be spent at once after a quiet time.
# burst_seconds = 60

# What a million tokens cost, in USD. The first section whose patterns match the model counts.
# [[providers.openai.prices]]
# models = ["gpt-*"]
# input = 0.25
# What the provider had cached. Default: as other input.
# cached_input = 0.025
# 0 for embeddings.
# output = 2.0
# What these become in a service tier, by the name that answers give it. A tier that may cost more has no price
# without its factor; `batch` is by default as cheap as the provider documents, mostly half, and so are
# `"background 8h"` and `"background 2h"`. vllm, sglang, llamacpp and "openai-compatible" document nothing: 1.
# tiers = { batch = 0.5, flex = 0.5, priority = 2.0 }

# The service tier that each class asks for, at openai, azure, anthropic, gemini, mistral, groq and fireworks, in
# their own words. It changes prices. A call that names a tier itself keeps it; one for whose tier there is no room
# goes in the provider's default tier in the end. Default: none is asked for.
# [providers.openai.service_tiers]
# interactive = "priority"
# bulk = "flex"

# The provider's batches, which answer later and cost less. Bulk work with a deadline goes there while a batch can
# be back before it; what is not back is taken out in time and sent as ordinary calls.
# [providers.openai.batch]
# Default: true where the kind of provider is known to have batches, which any "openai-compatible" server is not.
# enabled = true
# Lines of /v1/responses can also be answered one by one in the background, within 8 or 2 hours. That costs 60 or
# 70 % of the price where a batch costs half, and is for work that has no time for a batch. Default: true where the
# kind of provider has it, which is "openai" alone.
# background = true
# Awaited calls are gathered into a batch: it is sent off this long after the last one came ...
# window_seconds = 2
# ... and no later than this after the first.
# window_max_seconds = 30
# How soon an open batch is looked at. The next looks come after half as long again each time ...
# poll_seconds = 1
# ... up to this.
# poll_max_seconds = 60
# The most requests, and bytes, of one batch. Default: what the provider documents.
# max_requests = 50_000
# max_bytes = 200_000_000
# How long batches are thought to take until some have been seen. Default: nobody knows, so that only work with
# time for the provider's whole window, mostly a day, goes into the first one.
# expected_seconds = 3600
# How long a batch takes to end that is cancelled, since its deadline comes near. Default: what the provider says.
# cancelling_seconds = 600


# --- How the two classes share ---------------------------------------------------------------------------------

[traffic]
# The share of each limit that bulk leaves alone, so that an interactive call finds it free: a number from 0 to
# 0.9, or "auto", which follows the interactive demand.
interactive_reserve = "auto"
# interactive_reserve = 0.2
# The share of each limit, and of an engine's tokens, that bulk gets even under endless interactive load, from 0 to
# 0.9. 0: bulk may wait.
bulk_min_share = 0.0
# How many calls of a class may wait for a limit, or an engine: one more fails at once. Default: any number, they
# are only calls.
# max_waiting = 10_000
# Send up to this share of the interactive calls a second time, where their answers are later than usual, and take
# the first that comes. 0: never. Both are charged: 0.05 costs at most 5 % more calls.
hedge_share = 0.0
# What becomes of a call for a model that is none of these, to a host that is none of these providers': "pass", it
# goes there, unmetered; "refuse", nowhere; "auto", nowhere if it is probably a slip, or all models run in here.
unknown_models = "auto"

[budget]
# Who shares the budget. "memory": this process alone. "sqlite:PATH": all processes of this machine that name the
# same file (web workers, a nightly job); it is made where it is missing, and belongs on a local disk.
backend = "memory"
# backend = "sqlite:.orchestra/budget.db"

[bulk]
# The SQLite file that holds bulk jobs: every line, its state and its answer. Beside this file, as all paths here.
store = ".orchestra/jobs.db"

[network]
# The library that requests go out with. "httpx2" takes more time a request, and knows SOCKS proxies.
client = "aiohttp"

[observe]
# Whether `orchestra status`, run by the same user on this machine, can look into a running program: its limits,
# what waits and why. It sees no key, no prompt and no answer.
status = true

[metrics]
# Serve a page for Prometheus at http://127.0.0.1:PORT/metrics; "0.0.0.0:9464" opens it to other machines. A
# process that finds the port taken says so and goes on without. Needs: pip install 'prometheus-client>=0.21'
# prometheus = 9464
# Tell OpenTelemetry of each call (a span, with its queue and its attempts) and of the same numbers, through the
# providers of your program or of `opentelemetry-instrument`. Needs:
# pip install 'opentelemetry-api>=1.30' 'opentelemetry-sdk>=1.30'
otel = false
"""


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("orchestra.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
) -> None:
    """Write a commented orchestra.toml: every setting explained, with its default. It works as it is."""
    try:
        if path.is_dir():
            raise IsADirectoryError
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; name a file") from None
    except FileExistsError:
        raise ConfigError(f"{path} exists already; --force replaces it, or name another path") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    typer.echo(f"{path} written: the model 'fast' is answered by an engine in your process, with no key.")
    typer.echo("Next: orchestra doctor")
