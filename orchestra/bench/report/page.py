"""The report as one HTML file: no script, no other file, light and dark, wide and narrow."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape

from orchestra.bench.report.plots import BULK_FILL, INTERACTIVE_FILL, first_tokens, queue, throughput
from orchestra.bench.report.report import Report
from orchestra.bench.report.table import short
from orchestra.bench.results.figures import RateFigures
from orchestra.bench.results.quantiles import Quantiles

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1c1c1c; --faint: #6a6a6a; --grid: #e2e2e2;
  --span: #f1f1f1; --a: #b84a00; --b: #0b67a3; }
@media (prefers-color-scheme: dark) { :root { --ground: #151515; --ink: #ececec; --faint: #a2a2a2; --grid: #343434;
  --span: #222; --a: #ff9d57; --b: #7cc4f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.25rem 1rem 3rem; max-width: 68rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.25; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.faint, figcaption { color: var(--faint); }
.advice { border-left: 4px solid var(--a); padding: .25rem 0 .25rem .9rem; font-size: 1.1rem; }
.grid { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
figure { margin: 0; } figcaption { font-size: .9rem; } svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; overflow-wrap: normal; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--grid);
  white-space: nowrap; } th:first-child, td:first-child, .words th, .words td { text-align: left; }
.words td { white-space: normal; } th { font-weight: 600; }
svg text { font: 13px system-ui, sans-serif; fill: var(--ink); } svg .tick { fill: var(--faint); font-size: 12px; }
svg .text { paint-order: stroke; stroke: var(--ground); stroke-width: 3px; stroke-linejoin: round; }
svg .name { fill: var(--faint); } svg .strong { font-weight: 700; } svg .grid { stroke: var(--grid); }
svg .axis { stroke: var(--faint); } svg .span { fill: var(--span); }
svg .line { fill: none; stroke-width: 2; } svg .line.a { stroke: var(--a); } svg .line.b { stroke: var(--b); }
svg .line.ink { stroke: var(--ink); stroke-width: 1.2; }
svg .mark.a { fill: var(--a); } svg .mark.b { fill: var(--b); }
svg .ring { fill: none; stroke: var(--ink); stroke-width: 2; }
svg .level { stroke: var(--ink); stroke-dasharray: 2 4; stroke-width: 1.5; }
"""

_PATTERNS = f"""<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>
<pattern id="{INTERACTIVE_FILL}" width="6" height="6" patternUnits="userSpaceOnUse">
<rect width="6" height="6" style="fill:var(--a);opacity:.35"/>
<path d="M0 6L6 0" style="stroke:var(--a);stroke-width:1.4"/></pattern>
<pattern id="{BULK_FILL}" width="6" height="6" patternUnits="userSpaceOnUse">
<rect width="6" height="6" style="fill:var(--b);opacity:.3"/>
<circle cx="3" cy="3" r="1.1" style="fill:var(--b)"/></pattern></defs></svg>"""


def page(report: Report) -> str:
    """Return the whole document."""
    title = escape(f"{report.target} under load")
    day = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.started))
    slo = "" if report.slo is None else f"<p>SLO: {escape(str(report.slo))}</p>"
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{_STYLE}</style></head><body>{_PATTERNS}",
            f'<h1>{title}</h1><p class="faint">{day}</p>',
            f'<p class="advice">{escape(report.advice.reason)}</p>{slo}',
            f"<ul>{notes}</ul>" if notes else "",
            *(_figures(report) if report.points else ()),
            _settings(report),
            "</body></html>\n",
        )
    )


def _figures(report: Report) -> Iterable[str]:
    yield '<h2>At which rate</h2><div class="grid">'
    yield _figure(throughput(report), "A point for each rate. Triangle: the target did not keep up.")
    yield _figure(
        first_tokens(report), "Solid with marks: p95; dashed: median. Circles are interactive, squares bulk calls."
    )
    yield "</div>"
    yield _table("Throughput", _RATE_NAMES, [_rate_row(point) for point in report.points])
    yield _table("Latency: p50 / p95 / p99", _LATENCY_NAMES, _latency_rows(report.points))
    yield '<h2>Calls under way over time</h2><p class="faint">Shaded: the window that counts. Hatched, on top: '
    yield 'interactive. Dotted: bulk.</p><div class="grid">'
    for point in report.points:
        yield _figure(queue(point), f"{point.rate:.3g} calls a second, drained in {point.drain:.1f} s")
    yield "</div>"
    reasons = [
        [f"{point.rate:.3g}/s", str(count), reason] for point in report.points for reason, count in point.reasons
    ]
    if reasons:
        yield _table("Why calls were not answered", ["rate", "calls", "reason"], reasons, "words")


_RATE_NAMES = [
    *("calls/s", "answered/s", "tokens/s", "good/s", "SLO kept", "calls", "refused", "failed"),
    *("unfinished", "queue", "drain, s", "cached", "$/1M tokens"),
]
_LATENCY_NAMES = ["calls/s", "class", "TTFT, s", "TPOT, ms", "gap, ms", "end to end, s"]


def _rate_row(point: RateFigures) -> list[str]:
    classes = point.classes.values()
    attainment, cost = point.attainment, point.usd_per_million_tokens
    return [
        f"{point.rate:.3g}",
        short(point.answered_per_s),
        short(point.output_tokens_per_s),
        "" if point.goodput is None else short(point.goodput),
        "" if attainment is None else f"{attainment:.1%}",
        str(point.calls),
        str(sum(one.refused for one in classes)),
        str(sum(one.failed for one in classes)),
        str(sum(one.unfinished for one in classes)),
        short(point.depth_mean),
        f"{point.drain:.1f}",
        "" if point.cached is None else f"{point.cached:.0%}",
        "" if cost is None else f"{cost:.3g}",
    ]


def _latency_rows(points: Sequence[RateFigures]) -> list[list[str]]:
    def cell(values: Quantiles | None, scale: float) -> str:
        if values is None:
            return ""
        return " / ".join(short(value * scale) for value in (values.p50, values.p95, values.p99))

    return [
        [
            f"{point.rate:.3g}",
            traffic.value,
            *(cell(one.ttft, 1), cell(one.tpot, 1000), cell(one.gap, 1000), cell(one.e2e, 1)),
        ]
        for point in points
        for traffic, one in point.classes.items()
    ]


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<h2>{escape(title)}</h2><div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _settings(report: Report) -> str:
    told = report.settings.items()
    rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in told)
    return (
        f'<h2>What was asked</h2><table class="words"><tbody>{rows}</tbody></table>'
        '<p class="faint">Latencies count from the instant at which a call was to be sent. A gap is the time '
        "between two pieces of a stream, and a piece may hold several tokens. Throughput is what arrived in the "
        "window; tokens/s are those of the output. The queue is the mean number of calls under way. Good calls "
        "kept the SLO. Cached are those of the prompts' tokens that the target says it had already.</p>"
    )
