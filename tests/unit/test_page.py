"""The page kit: nothing unescaped, nothing fetched, well-formed, and marks where the numbers say."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from slipstream.measure.charts import ticks
from slipstream.measure.page import Bar, bars, esc, facts, lines, page, section, stacked, table

EVIL = "<script>alert('x')</script>&\""


def widths(svg: str) -> list[float]:
    return [float(r.get("width", "0")) for r in ET.fromstring(svg).iter("rect") if r.find("title") is not None]


class Balance(HTMLParser):
    """Counts tags that are opened and not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "line", "rect", "circle", "polyline", "path", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()


def charts() -> list[str]:
    return [
        bars([Bar(EVIL, 2.0, 1.5, 2.5, EVIL)], unit=EVIL, baseline=1.0),
        lines({EVIL: [(1, 0.5), (2, 0.25)]}, x=EVIL, y=EVIL),
        stacked([(EVIL, {EVIL: 1.0})], unit=EVIL),
    ]


def test_every_text_is_escaped() -> None:
    parts = [table([EVIL], [[EVIL]]), section(EVIL, note=EVIL), facts([(EVIL, EVIL)]), *charts()]
    whole = page(EVIL, parts, lead=EVIL)
    assert "<script" not in whole
    assert esc(EVIL) in whole


def test_nothing_is_fetched_from_anywhere() -> None:
    whole = page("title", charts())
    assert not re.search(r"https?:|src=|@import|url\(", whole)
    assert "prefers-color-scheme:dark" in whole


def test_the_page_is_balanced_and_charts_are_xml() -> None:
    parser = Balance()
    parser.feed(page("title", [section("a", *charts(), table(["a", "b"], [[1, 2]]), note="n")], lead="lead"))
    assert [tag for tag in parser.open if tag not in {"rect", "circle"}] == []
    for chart in charts():
        ET.fromstring(chart)


def test_bars_are_as_long_as_their_values() -> None:
    found = widths(bars([Bar("a", 1.0), Bar("b", 2.0), Bar("c", 0.5)], unit="x"))
    assert found[1] == pytest.approx(2 * found[0], abs=0.2)
    assert found[2] == pytest.approx(found[0] / 2, abs=0.2)


def test_a_bar_below_the_baseline_looks_different() -> None:
    svg = bars([Bar("slower", 0.8), Bar("faster", 1.3)], unit="x", baseline=1.0)
    colours = [r.get("class") for r in ET.fromstring(svg).iter("rect")]
    assert colours == ["f1", "f0"]
    assert 'class="base"' in svg
    assert "1.30x" in svg


def test_whiskers_need_both_ends() -> None:
    assert "whisker" in bars([Bar("a", 1.0, 0.9, 1.2)], unit="x")
    assert "whisker" not in bars([Bar("a", 1.0, 0.9)], unit="x")


def test_lines_go_up_where_values_do() -> None:
    svg = lines({"a": [(1, 0.1), (2, 0.9)], "b": [(1, 0.5)]}, x="position", y="rate")
    points = next(ET.fromstring(svg).iter("polyline")).get("points", "").split()
    (x1, y1), (x2, y2) = (map(float, p.split(",")) for p in points)
    assert x2 > x1
    assert y2 < y1  # towards the top
    assert len(list(ET.fromstring(svg).iter("circle"))) == 3


def test_stacked_parts_keep_their_colour_and_add_up() -> None:
    svg = stacked([("plain", {"target": 3.0}), ("lookup", {"draft": 1.0, "target": 2.0})], unit="s")
    found = [
        (r.get("class"), float(r.get("width", "")))
        for r in ET.fromstring(svg).iter("rect")
        if r.find("title") is not None
    ]
    assert [colour for colour, _ in found] == ["f0", "f1", "f0"]
    assert found[0][1] == pytest.approx(found[1][1] + found[2][1], abs=0.2)
    assert svg.count("3 s") >= 2


@pytest.mark.parametrize(
    "chart",
    [
        bars([], unit="x"),
        bars([Bar("a", math.nan)], unit="x"),
        lines({}, x="x", y="y"),
        lines({"a": [(1, math.inf)]}, x="x", y="y"),
        stacked([], unit="s"),
        stacked([("a", {})], unit="s"),
    ],
)
def test_no_numbers_no_picture(chart: str) -> None:
    assert "nothing to draw" in chart


@pytest.mark.parametrize("limits", [(0, 1), (0, 0), (3, 3), (0.97, 1.02), (1, 8), (-2, 5), (0, 12345)])
def test_ticks_are_round_and_cover(limits: tuple[float, float]) -> None:
    found = ticks(*limits)
    assert found[0] <= limits[0]
    assert found[-1] >= limits[1]
    assert 2 <= len(found) <= 9
    assert found == sorted(set(found))


def test_points_of_zero_width_are_still_drawn() -> None:
    assert "circle" in lines({"a": [(3, 0.0)]}, x="x", y="y")
    assert widths(bars([Bar("a", 0.0)], unit="x")) == [0.0]
    assert "0 s" in stacked([("a", {"target": 0.0})], unit="s")


def test_long_labels_are_cut_and_kept_in_the_title() -> None:
    name = "a-very-long-label-" * 4
    svg = bars([Bar(name, 1.0)], unit="x")
    assert "…" in svg
    assert f"<title>{name}</title>" in svg
