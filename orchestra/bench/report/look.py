"""How plots look: their colours on light and on dark ground, their lines and their patterns, as CSS and SVG."""

from __future__ import annotations

from orchestra.bench.report.plots import BULK_FILL, INTERACTIVE_FILL

__all__ = ["COLOURS", "PATTERNS", "PLOTS"]

COLOURS = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1c1c1c; --faint: #6a6a6a; --grid: #e2e2e2;
  --span: #f1f1f1; --a: #b84a00; --b: #0b67a3; }
@media (prefers-color-scheme: dark) { :root { --ground: #151515; --ink: #ececec; --faint: #a2a2a2; --grid: #343434;
  --span: #222; --a: #ff9d57; --b: #7cc4f5; } }
"""
"""The colours by name, as the reader's system wants them."""

PLOTS = """
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
"""What stands in a `Plot`, in those colours."""

PATTERNS = f"""<defs>
<pattern id="{INTERACTIVE_FILL}" width="6" height="6" patternUnits="userSpaceOnUse">
<rect width="6" height="6" style="fill:var(--a);opacity:.35"/>
<path d="M0 6L6 0" style="stroke:var(--a);stroke-width:1.4"/></pattern>
<pattern id="{BULK_FILL}" width="6" height="6" patternUnits="userSpaceOnUse">
<rect width="6" height="6" style="fill:var(--b);opacity:.3"/>
<circle cx="3" cy="3" r="1.1" style="fill:var(--b)"/></pattern></defs>"""
"""What areas are filled with, so that they differ in grey as well."""
