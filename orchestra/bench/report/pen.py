"""How pictures by matplotlib look."""

from __future__ import annotations

from typing import Any

__all__ = ["BULK", "FAINT", "INK", "INTERACTIVE", "STYLE"]

# distinct to colour-blind eyes, and by lightness in grey (Okabe and Ito, 2008)
INTERACTIVE = "#D55E00"
BULK = "#8CC4E8"
INK = "#222222"
FAINT = "#777777"

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "figure.constrained_layout.h_pad": 0.12,
    "figure.constrained_layout.hspace": 0.08,
}
