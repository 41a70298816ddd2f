"""Points as text: hand-checked planes, points in one place, and points of one value."""

from hypothesis import given
from hypothesis import strategies as st

from gossamer.app.bench.scatter import MARKS, Point, scatter


def plane(text):
    return [line.split("|")[1] for line in text.splitlines()[1:-1]]


def test_corners():
    text = scatter([Point(1.0, 0.0), Point(100.0, 1.0), Point(10.0, 0.5)], "ms", "loss", width=5, height=3)
    assert plane(text) == ["    b", "  c  ", "a    "]
    assert text.splitlines()[0] == "loss" and text.splitlines()[-1].strip() == "1 ... 100 ms, logarithmic"


def test_points_in_one_place_stand_side_by_side():
    same = [Point(1.0, 1.0), Point(1.0, 1.0), Point(8.0, 1.0), Point(8.0, 1.0)]
    assert plane(scatter(same, "x", "y", width=8, height=1)) == ["ab    dc"]
    assert plane(scatter([Point(2.0, 3.0)], "x", "y", width=3, height=3)) == ["   ", " a ", "   "]


def test_nothing():
    assert scatter([], "x", "y") == ""


@given(st.lists(st.builds(Point, st.floats(1e-3, 1e3), st.floats(-5, 5)), min_size=1, max_size=52))
def test_every_point_is_drawn_once(points):
    drawn = "".join(plane(scatter(points, "x", "y")))
    assert sorted(drawn.replace(" ", "")) == sorted(MARKS[: len(points)])
