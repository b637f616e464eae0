"""Small charts as inline SVG: bars with intervals, lines, and stacked bars.

In: labelled numbers. Out: a string of SVG that takes its colours from the page's style sheet. Every mark carries a
title, so that its exact value can be read by pointing at it; every text is escaped. Numbers that are not finite are
left out of the picture; a chart without any says so.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

WIDTH = 720
COLOURS = 6
_ROW = 30  # height of one bar's row
_LETTER = 6.7  # average width of a letter


@dataclass(frozen=True)
class Bar:
    """One bar: a value, its interval if there is one, and a note printed behind the value."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""


def esc(text: object) -> str:
    """Return a text that is safe inside HTML and inside a quoted attribute."""
    return html.escape(str(text), quote=True)


def number(value: float) -> str:
    """Write a number shortly: three significant digits, whole numbers in full."""
    if not math.isfinite(value):
        return "-"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def bars(items: list[Bar], *, unit: str, baseline: float | None = None) -> str:
    """Return horizontal bars with whiskers; `baseline` draws a dashed line, and bars below it change colour."""
    items = [item for item in items if math.isfinite(item.value)]
    if not items:
        return _nothing()
    left = _label_room(item.label for item in items)
    right = 24 + _LETTER * max(len(_value(item, unit)) for item in items)
    top = max([baseline or 0.0, *(max(item.value, _finite(item.high, item.value)) for item in items)])
    scale = (WIDTH - left - right) / (top or 1.0)
    height = _ROW * len(items) + 28
    marks = [_bar(item, k, (left, scale), unit, baseline) for k, item in enumerate(items)]
    end = _ROW * len(items) + 4
    if baseline is not None:
        x = left + scale * baseline
        marks.append(f'<line class="base" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{end}"/>')
        marks.append(_text(x, end + 14, _with_unit(number(baseline), unit), anchor="middle", soft=True))
    return _svg(height, marks, f"bars: {', '.join(item.label for item in items)}")


def lines(series: Mapping[str, list[tuple[float, float]]], *, x: str, y: str) -> str:
    """Return a line chart of (x, y) points with axes from zero where that fits, and a legend above."""
    shown = {name: [p for p in points if all(map(math.isfinite, p))] for name, points in series.items()}
    shown = {name: points for name, points in shown.items() if points}
    if not shown:
        return _nothing()
    legend, head = _legend(list(shown))
    frame = _Frame.around([p for points in shown.values() for p in points], head + 26)
    marks = [*legend, *frame.axes(x, y)]
    for k, (name, points) in enumerate(shown.items()):
        colour = k % COLOURS
        places = [(frame.x(a), frame.y(b)) for a, b in sorted(points)]
        marks.append(f'<polyline class="s{colour}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in places)}"/>')
        for (a, b), (at, up) in zip(sorted(points), places, strict=True):
            said = esc(f"{name}: {x} {number(a)}, {y} {number(b)}")
            marks.append(f'<circle class="f{colour}" cx="{at:.1f}" cy="{up:.1f}" r="3"><title>{said}</title></circle>')
    return _svg(frame.bottom + 40, marks, f"{y} by {x}: {', '.join(shown)}")


def stacked(items: list[tuple[str, dict[str, float]]], *, unit: str) -> str:
    """Return horizontal bars made of named parts, the same colour for the same part, with the total at the end."""
    items = [(label, {k: v for k, v in parts.items() if math.isfinite(v) and v >= 0}) for label, parts in items]
    names = list(dict.fromkeys(name for _, parts in items for name in parts))
    if not names:
        return _nothing()
    marks, head = _legend(names)
    totals = [sum(parts.values()) for _, parts in items]
    left = _label_room(label for label, _ in items)
    ends = [_with_unit(number(total), unit) for total in totals]
    scale = (WIDTH - left - 24 - _LETTER * max(map(len, ends))) / (max(totals) or 1.0)
    for k, ((label, parts), end) in enumerate(zip(items, ends, strict=True)):
        y = head + _ROW * k
        marks.append(_label(label, left, y))
        at = float(left)
        for name, value in parts.items():
            colour = names.index(name) % COLOURS
            said = esc(f"{label}: {name} {number(value)} {unit}")
            marks.append(_rectangle((at, y + 5), value * scale, colour, said))
            at += value * scale
        marks.append(_text(at + 8, y + 19, end))
    return _svg(head + _ROW * len(items) + 6, marks, f"stacked bars: {', '.join(names)}")


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers from at most `low` to at least `high`, about `most` of them."""
    span = (high - low) or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next(f for f in (1, 2, 5, 10) if span / (f * step) <= most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, max(last, first + 1) + 1)]


@dataclass(frozen=True)
class _Frame:
    """The plotting area of a line chart: round limits on both axes, in pixels from the top."""

    xs: list[float]
    ys: list[float]
    top: float

    left, right, tall = 56, 20, 230

    @classmethod
    def around(cls, points: list[tuple[float, float]], top: float) -> _Frame:
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        whole = all(x == int(x) for x in xs)
        across = ticks(min(xs), max(xs), 8)
        across = [t for t in across if not whole or t == int(t)]  # no half positions between whole ones
        floor = 0.0 if min(ys) >= 0 and min(ys) < 0.6 * max(ys) else min(ys)
        return cls(across, ticks(floor, max(ys)), top)

    @property
    def bottom(self) -> float:
        return self.top + self.tall

    def x(self, value: float) -> float:
        span = (self.xs[-1] - self.xs[0]) or 1.0
        return self.left + (value - self.xs[0]) / span * (WIDTH - self.left - self.right)

    def y(self, value: float) -> float:
        span = (self.ys[-1] - self.ys[0]) or 1.0
        return self.bottom - (value - self.ys[0]) / span * self.tall

    def axes(self, x: str, y: str) -> list[str]:
        marks = [_text(0, self.top - 14, y, soft=True)]
        for value in self.ys:
            at = self.y(value)
            marks.append(f'<line class="axis" x1="{self.left}" x2="{WIDTH - self.right}" y1="{at:.1f}" y2="{at:.1f}"/>')
            marks.append(_text(self.left - 8, at + 4, number(value), anchor="end", soft=True))
        for value in self.xs:
            marks.append(_text(self.x(value), self.bottom + 16, number(value), anchor="middle", soft=True))
        marks.append(_text((self.left + WIDTH - self.right) / 2, self.bottom + 34, x, anchor="middle", soft=True))
        return marks


def _bar(item: Bar, k: int, place: tuple[float, float], unit: str, baseline: float | None) -> str:
    left, scale = place
    y, width = _ROW * k, max(0.0, item.value * scale)
    colour = 1 if baseline is not None and item.value < baseline else 0
    said = esc(f"{item.label}: {_value(item, unit)}{_interval(item)}")
    parts = [_label(item.label, left, y), _rectangle((left, y + 5), width, colour, said)]
    end = left + width
    if item.low is not None and item.high is not None and math.isfinite(item.low + item.high):
        a, b = left + scale * max(0.0, item.low), left + scale * item.high
        ends = "".join(f"M{at:.1f} {y + 10}v8" for at in (a, b))
        parts.append(f'<path class="whisker" fill="none" d="{ends}M{a:.1f} {y + 14}H{b:.1f}"/>')
        end = max(end, b)
    return "".join([*parts, _text(end + 8, y + 19, _value(item, unit))])


def _value(item: Bar, unit: str) -> str:
    shown = f"{item.value:.2f}" if unit == "x" else number(item.value)
    return f"{_with_unit(shown, unit)} {item.note}".strip()


def _with_unit(shown: str, unit: str) -> str:
    return f"{shown}{'' if unit in ('x', '%') else ' '}{unit}".strip()


def _interval(item: Bar) -> str:
    known = item.low is not None and item.high is not None
    return f" ({number(item.low or 0.0)} to {number(item.high or 0.0)})" if known else ""


def _finite(value: float | None, other: float) -> float:
    return value if value is not None and math.isfinite(value) else other


def _label_room(labels: Iterable[str]) -> int:
    return int(min(250, 14 + _LETTER * max(map(len, labels))))


def _label(text: str, left: float, y: float) -> str:
    most = int((left - 14) / _LETTER) + 1
    short = text if len(text) <= most else text[: most - 1] + "…"
    return f"<g><title>{esc(text)}</title>{_text(0, y + 19, short)}</g>"


def _legend(names: list[str]) -> tuple[list[str], int]:
    """Return the marks of a legend, wrapped to the width, and the height they take."""
    marks, x, y = [], 0.0, 4
    for k, name in enumerate(names):
        room = 32 + _LETTER * len(name)
        if x and x + room > WIDTH:
            x, y = 0.0, y + 20
        marks.append(f'<rect class="f{k % COLOURS}" x="{x:.1f}" y="{y}" width="11" height="11" rx="2"/>')
        marks.append(_text(x + 16, y + 10, name))
        x += room
    return marks, y + 24


def _rectangle(corner: tuple[float, float], width: float, colour: int, said: str) -> str:
    x, y = corner
    return (
        f'<rect class="f{colour}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="18" rx="1.5">'
        f"<title>{said}</title></rect>"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", soft: bool = False) -> str:
    kind = ' class="soft"' if soft else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{esc(text)}</text>'


def _svg(height: float, marks: list[str], said: str) -> str:
    inner = "\n".join(marks)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{esc(said)}">\n{inner}\n</svg>'
    )


def _nothing() -> str:
    return '<p class="note">nothing to draw</p>'
