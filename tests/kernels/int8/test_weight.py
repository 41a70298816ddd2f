"""An int8 weight: rounding, the range of activations, and bytes that are none."""

from __future__ import annotations

import pytest
import torch

from gossamer.kernels.int8 import pack
from gossamer.kernels.int8.layout import Layout, pack_as
from gossamer.kernels.int8.unpack import check, unpack
from gossamer.kernels.int8.weight import (
    DENSE,
    LINES,
    LOOKUP,
    MOST_COLS,
    Range,
    Sizes,
    check_sizes,
    parts,
    range_between,
    range_of,
    rounded,
    with_range,
)  # fmt: skip
from tests.kernels.int8.exact import LAYOUTS, a_mask, a_weight


def test_the_parts_of_a_weight_by_hand() -> None:
    made = parts(pack.dense(rounded(torch.tensor([[127.0, -1.0, 0.0], [0.0, 0.0, 254.0]]))))
    assert made.sizes[:3] == (DENSE, 2, 3) and made.scale.tolist() == [1, 2] and made.sum.tolist() == [126, 127]
    assert made.values[:8].tolist() == [127, -1, 0, 0, 0, 0, 127, 0]


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        (Sizes(DENSE, -1, 4), "negative or too large numbers"),
        (Sizes(DENSE, 1, 4, masked=2), "masked=2 must be 0, or 1 for a dense weight"),
        (Sizes(LOOKUP, 1, 4, lines=0), "lines=0 must lie in 1 .. 254"),
        (Sizes(LINES, 1, 4, stride=24), "stride=24, the rows of a block, must be 16, 32 .. 256"),
        (Sizes(LOOKUP, 1, 4, wide=4, stride=30), "multiples of wide"),
    ],
)
def test_sizes_that_make_no_sense(sizes: Sizes, why: str) -> None:
    with pytest.raises(ValueError) as error:
        check_sizes(sizes)
    assert why in str(error.value)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_range_travels_with_the_bytes(layout: Layout) -> None:
    mask = a_mask(20, 40, layout)
    packed = pack_as(a_weight(20, 40, mask), mask, layout)
    fixed = with_range(packed, Range(0.25, 254))
    check(fixed)
    assert range_of(packed) is None and range_of(fixed) == Range(0.25, 254)
    assert torch.equal(unpack(fixed), unpack(packed)) and torch.equal(with_range(fixed, None), packed)


@pytest.mark.parametrize(("low", "high", "want"), [(0, 0, (1.1754943508222875e-38, 0)), (-254, -1, (1.0, 254))])
def test_a_range_between(low: float, high: float, want: tuple[float, int]) -> None:
    assert range_between(low, high) == want


@pytest.mark.parametrize("bad", [Range(float("nan"), 0), Range(-1.0, 0), Range(1e-40, 0), Range(1.0, 255)])
def test_a_range_from_outside_is_checked(bad: Range) -> None:
    packed = with_range(pack_as(rounded(torch.eye(4)), torch.ones(4, 4) > 0, Layout("dense")), bad)
    with pytest.raises(ValueError, match="range of activations"):
        check(packed)
    with pytest.raises(RuntimeError, match="range of activations"):
        torch.ops.gossamer.int8_linear(packed, torch.ones(1, 4), None, 4, 0)


def test_rounding() -> None:
    weight = torch.randn(8, 50)
    small = rounded(weight)
    assert bool(((small.values * small.scale[:, None] - weight).abs() <= small.scale[:, None] * 0.5001).all())
    tiny = rounded(torch.tensor([[1e-42, 0.0]]))  # a scale is a normal number
    assert tiny.values.tolist() == [[0, 0]] and float(tiny.scale) > 1e-38
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not finite"):
            rounded(torch.tensor([[bad]]))
    with pytest.raises(ValueError, match="a matrix is needed"):
        rounded(torch.ones(3))
    wide = rounded(torch.ones(1, MOST_COLS + 1))
    with pytest.raises(ValueError, match="exact in 32 bits"):
        pack_as(wide, wide.values != 0, Layout("dense"))
