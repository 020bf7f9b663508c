"""How each plot is drawn from what was measured, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from orchestra.bench.report.look import COLOURS, PATTERNS, PLOTS
from orchestra.bench.report.plots import first_tokens, queue, throughput
from orchestra.bench.report.report import Report
from orchestra.bench.report.svg import HEIGHT, WIDTH, Axis, Mark, Plot, Style
from orchestra.durations import format_duration
from orchestra.policies.rank import nearest_rank

__all__ = ["FIGURES", "Figure"]

Found = Mapping[str, Any]
_REPORT: TypeAdapter[Report] = TypeAdapter(Report)
_SCALE = 1.5  # of the largest that it is shown; a narrow page makes it smaller


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot of what one source found. ``about`` is for who cannot see it, ``caption`` stands below it."""

    source: str
    plot: Callable[[Found], str]
    about: Callable[[Found], str]
    caption: Callable[[Found], str]

    def picture(self, found: Found) -> str:
        """Return the plot as a file of its own: with its ground, in colours for a light and a dark page."""
        drawn = self.plot(found)
        opening, rest = drawn.split(">", 1)
        ground = '<rect width="100%" height="100%" style="fill:var(--ground)"/>'
        size = f'width="{WIDTH * _SCALE:g}" height="{HEIGHT * _SCALE:g}"'
        opening = opening.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {size} ', 1)
        return f"{opening}><style>{COLOURS}{PLOTS}</style>{PATTERNS}{ground}{rest}\n"


def _waits(found: Found) -> str:
    looks: dict[str, tuple[Style, Mark]] = {"openai": ("b", "square"), "orchestra": ("a", "circle")}
    clients = found["clients"]
    every = [max(wait, 0.001) for one in clients.values() for _, wait in one["waits"]]
    plot = Plot(
        "Wait of each interactive call, through Orchestra and through the SDK alone",
        Axis("seconds from the start, at which a call was made", 0.0, found["seconds"]),
        Axis.over("seconds that it waited (logarithmic)", every, log=True),
    )
    for name, (style, mark) in looks.items():
        for at, wait in clients[name]["waits"]:
            left = _unanswered(found, at, wait)
            plot.mark((at, wait), "triangle" if left else mark, style, size=3.6)
    # in the gap between the two bands, each near its own
    quick, slow = (max(w for _, w in clients["orchestra"]["waits"]), min(w for _, w in clients["openai"]["waits"]))
    plot.label((found["seconds"] / 2, slow / 2), "the SDK, with a semaphore and its retries", strong=True)
    plot.label((found["seconds"] / 2, quick * 2), "through Orchestra", strong=True)
    return plot.draw()


def _unanswered(found: Found, at: float, wait: float) -> bool:
    """Whether a call still waited when nobody looked any more: then it counts as waiting until that instant."""
    return abs(at + found["service"] + wait - found["cut"]) < 0.02


def _wait_words(found: Found, name: str) -> str:
    one = found["clients"][name]
    waits = sorted(wait for _, wait in one["waits"])
    half, most = (_time(nearest_rank(waits, share)) for share in (0.5, 0.99))
    share, asked = one["refused"]["share"], one["interactive"]["asked"]
    refused = f"{share:.0%} of all requests refused" if one["refused"]["calls"] else "nothing refused"
    left = asked - one["interactive"]["answered"]
    late = f", and {left} of {asked} calls still waiting at the end (triangles)" if left else ""
    return f"{half} at the median, {most} at p99, {refused}{late}"


def _report(found: Found) -> Report:
    return _REPORT.validate_python(found["report"])


def _busiest(found: Found) -> str:
    return queue(max(_report(found).points, key=lambda point: point.rate))


def _rates(found: Found) -> str:
    lines = [
        f"{point.rate:g} calls a second: {point.output_tokens_per_s:.0f} tokens a second, p99 {_time(e2e.p99)}"
        for point in _report(found).points
        if (e2e := point.judged.e2e) is not None
    ]
    return "; ".join(lines)


def _busiest_words(found: Found) -> str:
    point = max(_report(found).points, key=lambda one: one.rate)
    kept = "The engine did not keep up" if point.saturated else "The engine kept up"
    left = sum(one.unfinished for one in point.classes.values())
    last = f"{left} were given up" if left else "the last was answered"
    return (
        f"Calls under way at {point.rate:g} calls a second; hatched, on top, interactive ones, dotted the bulk "
        f"ones. {kept}; on average {point.depth_mean:.1f} were under way, and {last} "
        f"{point.drain:.1f} s after the load had ended."
    )


def _steps(found: Found) -> str:
    plan = found["plan"]
    marks: dict[str, Mark] = {"weights": "circle", "kv": "square", "compute": "triangle", "overhead": "diamond"}
    operations = plan["load"]["operations"]
    steps = [(one["batch"], one["step_seconds"] * 1e3, one["bound"]) for one in operations]
    plot = Plot(
        "Time of a decode step against the requests in it",
        Axis.over("requests at once (logarithmic)", [batch for batch, _, _ in steps], log=True),
        Axis.over("milliseconds a step", [took for _, took, _ in steps]),
    )
    plot.line([(batch, took) for batch, took, _ in steps], "a")
    for batch, took, bound in steps:
        plot.mark((batch, took), marks[bound], "a")
    best = plan["load"]["best"]
    at = best["batch"], best["step_seconds"] * 1e3
    plot.ring(at, "")
    plot.label((at[0] * 2.5, at[1] * 0.6), f"{at[0]} at once", strong=True)  # right of it, below the line
    for bound, words in (("weights", "reads weights"), ("kv", "reads the KV cache"), ("compute", "computes")):
        those = [(batch, took) for batch, took, other in steps if other == bound]
        if those:  # left of a line that rises to the right
            batch, took = those[len(those) // 3]
            plot.label((batch if bound == "weights" else batch / 4, took), words)
    return plot.draw()


def _step_words(found: Found) -> str:
    load = found["plan"]["load"]
    steps = [load["operations"][0], load["best"], load["operations"][-1]]
    told = "; ".join(
        f"{one['batch']:,} at once: {one['step_seconds'] * 1e3:.1f} ms, {one['decode_tokens_per_second']:,.0f} "
        "tokens/s"
        for one in steps
    )
    return (
        f"{told}. Circles: most of the time goes into reading the weights; squares: into reading the KV cache. "
        "The ring: the smallest number at once that comes within 5 % of the most output."
    )


def _day(found: Found) -> str:
    days = found["days"]
    hours = range(24)
    plot = Plot(
        "The share of the account's requests that is used, hour by hour, for three deadlines of one job",
        Axis("hour of the day", 0.0, 24.0),
        Axis("share of the limit that is used", 0.0, 1.1),
    )
    looks: dict[str, tuple[Style, Mark | None]] = {
        "none": ("b", "square"),
        "6h": ("ink", None),
        "24h": ("a", "circle"),
    }
    for deadline, (style, mark) in looks.items():
        line = [(hour + 0.5, use) for hour, use in zip(hours, days[deadline]["hours"], strict=False)]
        plot.line(line, style, mark=mark, dashed=mark is None)
    for at, words in (((17.0, 0.95), "no deadline"), ((11.6, 0.75), "6 h"), ((12.7, 0.2), "24 h")):
        plot.label(at, words, strong=True)
    return plot.draw()


def _day_words(found: Found) -> str:
    told = []
    for deadline, day in found["days"].items():
        job = day["job"]
        given = "without a deadline" if deadline == "none" else f"with {deadline.removesuffix('h')} hours"
        took = "not to its end" if job["seconds"] is None else f"in {format_duration(job['seconds'])}"
        told.append(f"{given}, {job['batched']:,} in batches, done {took}, the day for ${day['usd']:.2f}")
    return "; ".join(told)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _on(found: Found) -> str:
    machine = found["machine"]
    return f"`{found['command']}`, on {machine['cores']} cores of {machine['cpu']}."


FIGURES: Mapping[str, Figure] = {
    "shared-account": Figure(
        "account",
        _waits,
        lambda found: (
            "Waits of interactive calls over time, on a logarithmic scale. Through Orchestra: "
            f"{_wait_words(found, 'orchestra')}. Through the SDK: {_wait_words(found, 'openai')}."
        ),
        lambda found: (
            "Each point is a call that a person waits for: how long, by when it was made. One account of 600 "
            "requests a minute, and 2,000 bulk calls. Through Orchestra: "
            f"{_wait_words(found, 'orchestra')}. Through the SDK, with a semaphore of 64 and its own retries: "
            f"{_wait_words(found, 'openai')}. {_on(found)}"
        ),
    ),
    "throughput": Figure(
        "bench",
        lambda found: throughput(_report(found)),
        lambda found: f"Output tokens a second against the p99 end to end. {_rates(found)}.",
        lambda found: f"{_report(found).advice.reason} Triangle: the engine did not keep up. {_on(found)}",
    ),
    "first-tokens": Figure(
        "bench",
        lambda found: first_tokens(_report(found)),
        lambda _: "Time to first token of interactive and of bulk calls against the rate, median and p95.",
        lambda found: (
            "Time to first token by class as the rate rises; a third of the calls are bulk. Solid: p95, dashed: "
            f"median; circles are interactive, squares bulk. {_on(found)}"
        ),
    ),
    "queue": Figure(
        "bench",
        _busiest,
        lambda _: "The number of calls under way over time, at the highest rate that was tried.",
        lambda found: f"{_busiest_words(found)} {_on(found)}",
    ),
    "day": Figure(
        "day",
        _day,
        lambda _: "The share of an account's requests that is used, hour by hour, for three deadlines of one job.",
        lambda found: (
            "A day of an account of 24 requests a minute, simulated: people in office hours, and at nine a job of "
            f"4,000 lines. {_capital(_day_words(found))}. `{found['command']}`."
        ),
    ),
    "step-time": Figure(
        "plan",
        _steps,
        lambda _: "Milliseconds of a decode step against the requests in it: level at first, then rising.",
        lambda found: (
            f"Llama 3.1 8B on an H100, as computed, not measured. {_step_words(found)} `{found['command']}`."
        ),
    ),
}
"""By name, which is also that of the file."""
