"""Axes and plots."""

import math
import xml.etree.ElementTree as ElementTree

import pytest

from gossamer.report.svg import HEIGHT, WIDTH, Axis, Plot, bars, spanning


@pytest.mark.parametrize("low, high", [(0, 1), (0, 0.003), (-5, 5), (0.955, 0.98), (0, 123_456), (7, 7.0001)])
def test_ticks_are_few_and_inside(low, high):
    ticks = Axis("x", low, high).ticks()
    assert 2 <= len(ticks) <= 7
    assert all(low - 1e-9 <= t <= high + 1e-9 for t in ticks)


def test_log_ticks_are_powers_of_ten():
    assert Axis("x", 0.5, 2000, log=True).ticks() == [1, 10, 100, 1000]


def test_spanning_holds_all_values_even_if_they_are_one_or_none():
    for values in ([], [3.0], [0.0, 0.0], [-1.0, 2.0], [math.nan, 1.0], [math.inf]):
        axis = spanning("x", values)
        assert axis.low < axis.high
        assert all(axis.low <= v <= axis.high for v in values if math.isfinite(v))


def test_everything_lies_inside_and_is_well_formed():
    plot = Plot(spanning("a < b", [1, 256], log=True), spanning("y", [0.1, 0.9], percent=True))
    plot.line([(1, 0.1), (16, math.nan), (256, 0.9)], 0)
    plot.line([(1, 0.5)], 1)
    plot.point(1e9, -7, 2, "a & b", "far <out>")
    root = ElementTree.fromstring(plot.svg("all & sundry"))
    circles = [e for e in root.iter() if e.tag == "circle"]
    assert len(circles) == 2  # a line of one point is a point
    assert all(0 <= float(c.get("cx")) <= WIDTH and 0 <= float(c.get("cy")) <= HEIGHT for c in circles)


def test_bars_are_as_long_as_they_say():
    root = ElementTree.fromstring(bars([("a", 0.5, 0), ("b" * 80, 2.0, 1)], "shares"))
    track, half, _, full = (float(e.get("width")) for e in root.iter() if e.tag == "rect")
    assert (half, full) == (track / 2, track)
