"""A table of the figures, with what was expected of us, and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from verdicts import Verdict, show_verdicts

from mixed.scenario import Scenario

__all__ = ["judge", "plot", "show"]


def judge(scenario: Scenario, results: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    """Return each target with what it asks for, what was measured, and whether it holds.

    Where the floor was measured too, its median is no wait of ours.
    """
    ours = results.get("orchestra")
    if ours is None:
        return []
    targets, verdicts = scenario.targets, []
    floor = results["floor"]["wait"]["p50"] if "floor" in results else 0.0
    for name in ("p50", "p99"):
        if (most := getattr(targets, name)) is not None:
            wait = ours["wait"][name] - floor
            measured = f"{_ms(wait)} above the floor's {_ms(floor)}" if floor else _ms(wait)
            verdicts.append((f"interactive wait {name}", f"<= {_ms(most)}", measured, wait <= most))
    if targets.refused is not None:
        share = ours["refused"]["share"]
        verdicts.append(("calls refused", f"<= {targets.refused:.1%}", f"{share:.2%}", share <= targets.refused))
    if targets.used is not None:
        verdicts.append(("limit used", f">= {targets.used}", f"{ours['used']:.3f}", ours["used"] >= targets.used))
    peers = {name: one["served"] for name, one in results.items() if name not in ("orchestra", "floor")}
    if targets.of_best_peer is not None and peers:
        best = max(peers, key=lambda name: peers[name])
        share = ours["served"] / max(1, peers[best])
        asked = f">= {targets.of_best_peer:.0%} of the best peer ({best}: {peers[best]})"
        verdicts.append(("calls served", asked, f"{ours['served']} ({share:.0%})", share >= targets.of_best_peer))
    return verdicts


def show(
    scenario: Scenario, results: Mapping[str, Mapping[str, Any]], absent: Mapping[str, str], console: Console
) -> None:
    """Print the figures of every client, why others are absent, and our targets."""
    table = Table(title=f"{scenario.name}: {scenario.about}", title_justify="left")
    for column in (
        "client",
        "wait p50",
        "p95",
        "p99",
        "refused",
        "",
        "used",
        "served",
        "interactive",
        "bulk",
        "CPU",
    ):
        table.add_column(column, justify="left" if column == "client" else "right")
    for name, one in results.items():
        table.add_row(
            name,
            *(_ms(one["wait"][share]) for share in ("p50", "p95", "p99")),
            str(one["refused"]["calls"]),
            f"{one['refused']['share']:.1%}",
            f"{one['used']:.3f}",
            str(one["served"]),
            f"{one['interactive']['answered']}/{one['interactive']['asked']}",
            str(one["bulk"]["answered"]),
            f"{one['cpu_s']:.1f} s",
        )
    console.print(table)
    show_verdicts(judge(scenario, results), absent, console)


def plot(scenario: Scenario, results: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw every interactive call's wait over the time at which it was asked, and how the limit was used."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (waits, bars) = pyplot.subplots(2, 1, figsize=(10, 8), height_ratios=(3, 2), constrained_layout=True)
    for index, (name, one) in enumerate(results.items()):
        times, values = zip(*one["waits"], strict=True)
        shown = [max(value * 1000, 0.5) for value in values]
        waits.plot(times, shown, "o", ms=4, color=f"C{index}", label=name)
    waits.set_yscale("log")
    waits.set_xlabel("asked at (s)")
    waits.set_ylabel("interactive wait beyond service (ms)")
    waits.set_title(f"{scenario.name}: {scenario.about}", loc="left")
    waits.grid(alpha=0.3)
    waits.legend(ncols=len(results), fontsize="small")
    names = list(results)
    places = range(len(names))
    bars.barh([at + 0.2 for at in places], [results[name]["used"] for name in names], 0.38, label="limit used")
    bars.barh(
        [at - 0.2 for at in places],
        [results[name]["refused"]["share"] for name in names],
        0.38,
        label="calls refused",
    )
    bars.set_yticks(list(places), names)
    bars.invert_yaxis()
    bars.set_xlim(0, 1.05)
    bars.set_xlabel("share")
    bars.legend(loc="lower right", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
