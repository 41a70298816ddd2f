"""What lanes share, and how wide loads are."""

import pytest

from gossamer.compiler.gpu import mapping as maps


@pytest.mark.parametrize("size", [1, 3, 4, 31, 32, 33, 64, 100, 1000])
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_lanes_fit_a_warp_and_loads_fit_the_strides(size, itemsize):
    for made in (maps.strip("j", size, [size], itemsize, True), maps.dot("d", size, [size, 2 * size], itemsize)):
        assert 32 % made.lanes == 0 and size % made.wide == 0 and made.wide * itemsize <= 16
        assert made.units * made.lanes == maps.THREADS
        assert made.tiles(size) * made.lanes * made.wide >= size or made.role == "sum"


def test_strides_limit_loads():
    assert maps.widest(32, [33], 4) == 1 and maps.widest(32, [34], 4) == 2 and maps.widest(32, [], 2) == 8


def test_words():
    assert "2 lanes" in str(maps.strip("j", 8, [], 4, False)) and "4 at once" in str(maps.strip("j", 8, [], 4, False))
    assert str(maps.Mapping()) == "a thread for each turn of the outermost loop"
