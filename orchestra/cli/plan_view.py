"""What ``orchestra plan`` says: a plan as a page of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from orchestra.durations import format_duration
from orchestra.plan.performance import ENOUGH

if TYPE_CHECKING:
    from rich.table import Table

    from orchestra.plan.cost import Comparison
    from orchestra.plan.performance import Performance
    from orchestra.plan.report import Plan

__all__ = ["show"]

_WIDTH = 80
_BOUNDS = {
    "weights": "memory: weights",
    "kv": "memory: KV cache",
    "compute": "compute",
    "overhead": "neither: overhead",
}


def show(plan: Plan) -> None:
    """Print ``plan``."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.width = _WIDTH

    def say(text: str, style: str = "") -> None:
        for line in wrap(text, _WIDTH) or [""]:
            console.print(Text(line, style))

    engines = "float32" if plan.wanted.precision == "int8" else plan.wanted.precision
    kv_dtype = plan.wanted.kv_dtype or engines
    say(f"{plan.name} on {plan.device.name}, {plan.wanted.precision}, KV cache in {kv_dtype}", "bold")
    console.print(_facts(plan))
    console.print(Text(f"Device: {plan.device.source}", "dim"))
    say("")
    say(f"By requests at once, each with {plan.performance.mix.mean_context:,.0f} tokens before the next", "bold")
    console.print(_operations(plan))
    for sentence in _regions(plan):
        say(sentence)
    say("")
    say("If prompts double", "bold")
    if isinstance(plan.doubled, str):
        say(f"It does not work: {plan.doubled}")
    else:
        console.print(_doubled(plan, plan.doubled))
    if (comparison := plan.comparison) is not None:
        say("")
        say("Against the hosted price", "bold")
        console.print(_hosted(comparison))
        for sentence in _worth(comparison):
            say(sentence)
    say("")
    settings = [f"max_num_seqs = {plan.performance.best.batch}"]
    if plan.wanted.kv_bytes is not None:
        settings.append(f"kv_bytes = {plan.wanted.kv_bytes}")
    if plan.wanted.precision != ("float32" if plan.on_cpu else "bfloat16"):
        settings.append(f'precision = "{plan.wanted.precision}"')
    if kv_dtype == "float8":
        settings.append('kv_dtype = "float8"')
    say(f"To run it so, under [local.NAME] in orchestra.toml: {', '.join(settings)}", "dim")
    if kv_dtype not in (engines, "float8"):
        say(
            f"That keeps keys and values in {engines}: the engine has no setting for {kv_dtype}, so "
            "what fits, and how fast it is, will differ from this plan."
        )


def _facts(plan: Plan) -> Table:
    from rich.table import Table

    from orchestra.localengine.models.capacity import human

    capacity, performance, device, model = plan.capacity, plan.performance, plan.device, plan.model
    mix = performance.mix
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row("parameters", f"{model.parameters / 1e6:,.0f} million")
    memory = "that are free" if plan.on_cpu else f"({device.memory >> 30} GiB)"
    table.add_row("weights", f"{human(model.weight_bytes)} of {human(device.memory)} {memory}")
    table.add_row(
        "KV cache",
        f"{human(capacity.kv_bytes)} for {capacity.max_tokens:,} tokens of {capacity.kv_bytes_per_token:,} bytes",
    )
    told = "measured" if plan.on_cpu else f"{device.share:.0%} of its peak"
    table.add_row("device", f"reads {device.bandwidth / 1e9:,.1f} GB/s, computes {_flops(plan)}: {told}")
    table.add_row("lengths", f"prompts {mix.mean_prompt:,.0f} tokens on average, outputs {mix.mean_output:,.0f};")
    table.add_row("", f"together {mix.total_at(0.5):,} (p50), {mix.total_at(0.95):,} (p95)")
    table.add_row("fit at once", _fit(performance))
    table.add_row(
        "first token",
        f"after {_time(performance.first_token_p50)} for a p50 prompt, "
        f"{_time(performance.first_token_p95)} for p95, if idle",
    )
    return table


def _flops(plan: Plan) -> str:
    rate = plan.device.flops[plan.wanted.precision]
    return f"{rate / 1e12:,.0f} TFLOP/s" if rate >= 1e13 else f"{rate / 1e9:,.0f} GFLOP/s"


def _fit(performance: Performance) -> str:
    if performance.at_p50 == performance.at_p95 == performance.most:
        return f"{performance.most:,} requests"
    longest = (
        f"{performance.at_p95:,} of p95 length" if performance.at_p95 else "none of p95 length, which is too long"
    )
    return f"{performance.at_p50:,} requests of p50 length, {longest}; {performance.most:,} as they run"


def _operations(plan: Plan) -> Table:
    from rich.table import Table

    priced = plan.wanted.per_hour is not None
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("at once", "step", "tokens/s", "time goes to"):
        table.add_column(title, justify="left" if title == "time goes to" else "right", no_wrap=True)
    for title in ("TPOT", "output/s", *(["$/M out"] if priced else [])):
        table.add_column(title, justify="right", no_wrap=True)
    for operation in plan.performance.operations:
        table.add_row(
            f"{'* ' if operation.batch == plan.performance.best.batch else ''}{operation.batch:,}",
            _time(operation.decode.seconds),
            _number(operation.decode.tokens_per_second),
            _BOUNDS[operation.decode.bound]
            + (", from here" if operation.batch == plan.performance.crossing else ""),
            _time(operation.serving.seconds),
            _number(operation.output_tokens_per_second),
            *([_dollars(plan.dollars(operation))] if priced else []),
        )
    return table


def _regions(plan: Plan) -> Iterator[str]:
    performance, best = plan.performance, plan.performance.best
    last = performance.operations[-1].batch
    limit = "fits" if last == performance.most else "the bound on TPOT allows"
    aim, target = performance.aim, performance.target_seconds
    if target is not None and aim.batch < last:
        limit = f"the engine's target of {_time(target)} TPOT allows"
    if target is not None and aim.serving.seconds > target:
        advice = f": even one alone takes longer than the engine's target of {_time(target)} TPOT."
    elif best.batch == aim.batch:
        advice = f", as many as {'fit' if limit == 'fits' else limit}."
    else:
        advice = (
            f", come within {1 - ENOUGH:.0%} of the most output that {limit}; beyond that all wait longer for "
            "hardly more."
        )
    yield (
        "A step computes a token of each request; TPOT and output/s have the prompts that begin meanwhile in "
        f"them. * {best.batch:,} at once, {best.requests_per_second:,.2f} requests a second{advice}"
    )
    if aim.batch < last:
        yield "It keeps to that while somebody waits. For bulk alone a longer --tpot gives more output."
    ridge = f"Matrices take longer to compute than to read from {int(plan.roofline.ridge) + 1:,} tokens a step on."
    if performance.crossing is None:
        yield (
            f"{ridge} Steps stay bound by memory all the same: reading a request's KV cache takes longer than "
            "computing its token."
        )
    elif performance.crossing > last:
        yield f"{ridge} That is more than run at once: steps of output tokens stay bound by memory."
    else:
        yield f"{ridge} There the two regions meet: bound by memory below, by computing above."


def _doubled(plan: Plan, doubled: Performance) -> Table:
    from rich.table import Table

    table = Table("", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("now", "doubled", "change"):
        table.add_column(title, justify="right")

    def row(name: str, before: float, after: float, words: str) -> None:
        table.add_row(name, words.format(before), words.format(after), _change(before, after))

    now = plan.performance
    row("fit at once, p50 length", now.at_p50, doubled.at_p50, "{:,}")
    row("fit at once, p95 length", now.at_p95, doubled.at_p95, "{:,}")
    row("requests at once", now.best.batch, doubled.best.batch, "{:,}")
    row("first token, p50, ms", now.first_token_p50 * 1e3, doubled.first_token_p50 * 1e3, "{:,.1f}")
    row("TPOT, ms", now.best.serving.seconds * 1e3, doubled.best.serving.seconds * 1e3, "{:,.1f}")
    speeds = [performance.best.output_tokens_per_second for performance in (now, doubled)]
    row("output tokens a second", speeds[0], speeds[1], "{:,.0f}" if min(speeds) >= 100 else "{:,.1f}")
    before, after = plan.dollars(now.best), plan.dollars(doubled.best)
    if before is not None and after is not None:
        table.add_row("$ per million of output", _dollars(before), _dollars(after), _change(before, after))
    return table


def _hosted(comparison: Comparison) -> Table:
    from rich.table import Table

    table = Table("", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("1,000 requests", "to your own"):
        table.add_column(title, justify="right")
    table.add_row("your own, at full load", _dollars(comparison.own * 1000), "")
    rows = {"hosted": comparison.hosted}
    if comparison.batch != comparison.hosted:
        rows["hosted, in batches"] = comparison.batch
    for name, price in rows.items():
        table.add_row(name, _dollars(price * 1000), f"{price / comparison.own:.2f} x")
    return table


def _worth(comparison: Comparison) -> Iterator[str]:
    pairs = [("the hosted model", comparison.worth_from)]
    if comparison.batch != comparison.hosted:
        pairs.append(("its batches", comparison.worth_from_batch))
    for name, share in pairs:
        if share is None:
            yield f"Against {name}, your own never pays off."
        else:
            yield f"Against {name}, your own pays off from {share:.0%} of this load on."


def _change(before: float, after: float) -> str:
    return f"{after / before - 1:+.0%}" if before else ""


def _time(seconds: float) -> str:
    return (
        f"{seconds * 1e3:.{2 if seconds < 0.01 else 1 if seconds < 0.1 else 0}f} ms"
        if seconds < 1
        else format_duration(seconds)
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _dollars(amount: float | None) -> str:
    if amount is None:
        return ""
    return f"{amount:,.2f}" if amount >= 100 else f"{amount:,.3f}"
