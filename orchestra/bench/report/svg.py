"""Plots as inline SVG: axes, lines and marks that tell apart by shape, and take their colours from the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

__all__ = ["Axis", "Mark", "Plot", "is_wide"]

WIDTH, HEIGHT = 460, 290
"""Of the drawing, in its own units: small, so that its text can be read on a phone."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 16, 26, 44
_TICKS = 5
_LINE = 15
_WIDE = 20.0

Mark = Literal["circle", "square", "diamond", "triangle"]
Style = Literal["a", "b", "ink"]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear or logarithmic scale from ``low`` to ``high``, and what it measures.

    With ``names`` it measures nothing: they stand at 0, 1, 2, ..., instead of numbers.
    """

    label: str
    low: float
    high: float
    log: bool = False
    names: tuple[str, ...] = ()

    @classmethod
    def over(cls, label: str, values: Sequence[float], *, log: bool = False) -> Axis:
        """Return an axis that holds all the values; a linear one begins at zero."""
        found = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        high = max(found, default=1.0) or 1.0
        if not log:
            return cls(label, 0.0, high * 1.06)
        low = min(found, default=high)
        return cls(label, low / 1.25, high * 1.25, log=True)

    def place(self, value: float) -> float:
        """Return where a value lies: 0 at ``low``, 1 at ``high``, and no further."""
        if self.log:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))

    def ticks(self) -> list[float]:
        """Return round values within, or the places of the names."""
        if self.names:
            return [float(place) for place in range(len(self.names))]
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1, 2, 5) if last - first <= 3 else (1,)
            found = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        else:
            rough = (self.high - self.low) / _TICKS
            unit = 10.0 ** math.floor(math.log10(rough))
            step = next(step * unit for step in (1, 2, 5, 10) if step * unit >= rough * 0.999)
            found = [step * count for count in range(int(self.high / step) + 1)]
        return [value for value in found if self.low <= value <= self.high]

    def tick_text(self, value: float) -> str:
        """Return what stands at a tick."""
        return self.names[int(value)] if self.names else f"{value:g}"


@dataclass(slots=True)
class Plot:
    """A drawing of two axes. ``title`` says for who cannot see it what it shows."""

    title: str
    x: Axis
    y: Axis
    parts: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # on top of all lines
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)

    def line(
        self, points: Sequence[Point], style: Style, *, mark: Mark | None = None, dashed: bool = False
    ) -> None:
        """Join the points, and mark each."""
        path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in points)
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        self.parts.append(f'<polyline class="line {style}" points="{path}"{dash}/>')
        if mark is not None:
            for point in points:
                self.mark(point, mark, style)

    def mark(self, point: Point, mark: Mark, style: Style, *, size: float = 4.5) -> None:
        """Draw a filled shape around a point."""
        x, y = self._x(point[0]), self._y(point[1])
        self.parts.append(_shape(mark, x, y, size, f"mark {style}"))

    def whisker(self, x: float, low: float, high: float, style: Style) -> None:
        """Draw bounds: an upright line with a bar at each end."""
        at, bottom, top = self._x(x), self._y(low), self._y(high)
        path = f"M{at - 5:.1f} {bottom:.1f}h10M{at - 5:.1f} {top:.1f}h10M{at:.1f} {bottom:.1f}V{top:.1f}"
        self.parts.append(f'<path class="line {style}" d="{path}"/>')

    def ring(self, point: Point, label: str) -> None:
        """Put a ring around a point, and say why."""
        x, y = self._x(point[0]), self._y(point[1])
        self.parts.append(f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="10"/>')
        self.label(point, label, strong=True, away=16)

    def label(self, point: Point, text: str, *, strong: bool = False, away: float = 8) -> None:
        """Write above a point, or below it, or further off; nowhere where all of that is taken by other labels."""
        half = 3.6 * len(text)
        x = min(WIDTH - 4 - half, max(half + 4, self._x(point[0])))
        y = self._y(point[1])
        for base in (y - away, y + away + 11, y - away - _LINE, y + away + 11 + _LINE):
            box = (x - half, x + half, base - 11, base + 3)
            free = all(
                box[1] < left or right < box[0] or box[3] < top or bottom < box[2]
                for left, right, top, bottom in self.taken
            )
            if free and _TOP - 8 < base < HEIGHT - _BOTTOM:
                self.taken.append(box)
                kind = "text strong" if strong else "text"
                where = f'x="{x:.1f}" y="{base:.1f}" text-anchor="middle"'
                self.texts.append(f'<text class="{kind}" {where}>{escape(text)}</text>')
                return

    def area(self, lower: Sequence[Point], upper: Sequence[Point], pattern: str) -> None:
        """Fill what is between two lines, with a pattern of the page's."""
        outline = [*upper, *reversed(lower)]
        path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in outline)
        self.parts.append(f'<polygon class="area" fill="url(#{pattern})" points="{path}"/>')

    def level(self, y: float, text: str) -> None:
        """Draw a dotted line across, and say what it is. Nothing where it lies outside."""
        if not self.y.low <= y <= self.y.high:
            return
        at = self._y(y)
        self.parts.append(
            f'<line class="level" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="text" x="{_LEFT + 4}" y="{at - 5:.1f}">{escape(text)}</text>'
        )

    def span(self, start: float, end: float) -> None:
        """Shade what lies between two values of x."""
        left, right = self._x(start), self._x(end)
        height = HEIGHT - _TOP - _BOTTOM
        self.parts.insert(
            0, f'<rect class="span" x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" height="{height}"/>'
        )

    def draw(self) -> str:
        """Return the SVG element."""
        name = escape(self.title, quote=True)
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">'
            + "".join([*self._axes(), *self.parts, *self.texts])
            + "</svg>"
        )

    def _axes(self) -> list[str]:
        right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
        found = []
        for value in self.y.ticks():
            at = self._y(value)
            found.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
            where = f'x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end"'
            found.append(f'<text class="tick" {where}>{escape(self.y.tick_text(value))}</text>')
        for value in self.x.ticks():
            at = self._x(value)
            found.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
            where = f'x="{at:.1f}" y="{bottom + 18}" text-anchor="middle"'
            found.append(f'<text class="tick" {where}>{escape(self.x.tick_text(value))}</text>')
        found.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
        middle = (_LEFT + right) / 2
        found.append(
            f'<text class="name" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(self.x.label)}</text>'
        )
        found.append(f'<text class="name" x="4" y="{_TOP - 12}">{escape(self.y.label)}</text>')
        return found

    def _x(self, value: float) -> float:
        return _LEFT + self.x.place(value) * (WIDTH - _LEFT - _RIGHT)

    def _y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - self.y.place(value) * (HEIGHT - _TOP - _BOTTOM)


def is_wide(values: Sequence[float]) -> bool:
    """Return whether values lie so far apart that they need a logarithmic scale."""
    above = [value for value in values if value > 0]
    return bool(above) and max(above) > _WIDE * min(above)


def _shape(mark: Mark, x: float, y: float, size: float, kind: str) -> str:
    corners: tuple[Point, ...]
    match mark:
        case "circle":
            return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>'
        case "square":
            side = 2 * size - 1
            corner = f'x="{x - side / 2:.1f}" y="{y - side / 2:.1f}"'
            return f'<rect class="{kind}" {corner} width="{side}" height="{side}"/>'
        case "diamond":
            corners = ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0))
        case "triangle":
            corners = ((0, -1.2), (1.15, 0.9), (-1.15, 0.9))
    path = " ".join(f"{x + dx * size:.1f},{y + dy * size:.1f}" for dx, dy in corners)
    return f'<polygon class="{kind}" points="{path}"/>'
