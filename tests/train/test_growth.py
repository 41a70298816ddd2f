"""Growth from what users write."""

import pytest

import gossamer as gs
from gossamer.train.growth import Growth, as_growth


@pytest.mark.parametrize(
    "growth, wanted",
    [
        (None, Growth()),
        ("gradient", Growth(gs.Gradient(), 1)),
        ("random", Growth(None, 1)),
        (8, Growth(gs.Gradient(), 8)),
        ("mean of 8 steps", Growth(gs.Gradient(), 8)),
        ("mean of 1 step", Growth(gs.Gradient(), 1)),
        (gs.Movement(), Growth(gs.Movement(), 1)),
    ],
)
def test_growth(growth, wanted):
    assert as_growth(growth) == wanted


@pytest.mark.parametrize("growth", [0, -1, True, "mean of 0 steps", "mean of steps", "best"])
def test_what_it_refuses(growth):
    with pytest.raises(ValueError, match="steps"):
        as_growth(growth)


def test_the_default_is_the_methods():
    assert as_growth(None, Growth(None)) == Growth(None)
