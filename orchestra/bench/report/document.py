"""A report as one HTML file: no script, no other file, light and dark, wide and narrow."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from orchestra.bench.report.look import COLOURS, PATTERNS, PLOTS

__all__ = ["document", "figure", "settings_table", "table"]

_STYLE = f"""{COLOURS}* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; padding: 1.25rem 1rem 3rem; max-width: 68rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.4rem; line-height: 1.25; margin: 0 0 .25rem; }}
h2 {{ font-size: 1.1rem; margin: 2rem 0 .5rem; }}
.faint, figcaption {{ color: var(--faint); }}
.advice {{ border-left: 4px solid var(--a); padding: .25rem 0 .25rem .9rem; font-size: 1.1rem; }}
.grid {{ display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }}
figure {{ margin: 0; }} figcaption {{ font-size: .9rem; }} svg {{ width: 100%; height: auto; display: block; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; overflow-wrap: normal; }}
th, td {{ text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--grid);
  white-space: nowrap; }} th:first-child, td:first-child, .words th, .words td {{ text-align: left; }}
.words td {{ white-space: normal; }} th {{ font-weight: 600; }}{PLOTS}"""

_PATTERNS = f'<svg width="0" height="0" style="position:absolute" aria-hidden="true">{PATTERNS}</svg>'


def document(
    title: str, started: float, *, advice: Sequence[str], slo: object, notes: Sequence[str], parts: Iterable[str]
) -> str:
    """Return the whole file. ``started`` is unix time; ``advice`` are paragraphs, and stand first; ``parts`` are
    HTML, and come last. An ``slo`` of None is not told."""
    name = escape(title)
    day = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(started))
    said = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name}</title><style>{_STYLE}</style></head><body>{_PATTERNS}",
            f'<h1>{name}</h1><p class="faint">{day}</p>',
            *(f'<p class="advice">{escape(paragraph)}</p>' for paragraph in advice),
            "" if slo is None else f"<p>SLO: {escape(str(slo))}</p>",
            f"<ul>{said}</ul>" if said else "",
            *parts,
            "</body></html>\n",
        )
    )


def figure(svg: str, caption: str) -> str:
    """Return a plot and what stands below it."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def table(title: str, names: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table below its title. The ``kind`` ``words`` is for texts, which are broken into lines."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<h2>{escape(title)}</h2><div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def settings_table(settings: Mapping[str, str], words: str) -> str:
    """Return what was asked for, and below it what the ``words`` of the report mean."""
    rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in settings.items())
    return (
        f'<h2>What was asked</h2><table class="words"><tbody>{rows}</tbody></table>'
        f'<p class="faint">{escape(words)}</p>'
    )
