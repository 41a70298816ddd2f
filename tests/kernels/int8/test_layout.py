"""Bytes and back: packing in every layout, which layouts suit a pattern, bytes from outside."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gossamer as gs
from gossamer.kernels.int8.layout import Layout, as_rounded, dense_of, layout_of, layouts, pack_as, usual
from gossamer.kernels.int8.unpack import check, mask_of, unpack
from gossamer.kernels.int8.weight import MOST_COLS, Range, parts, range_between, range_of, rounded, with_range
from gossamer.kernels.int8.windows import schedule
from tests.kernels.int8.exact import LAYOUTS, SHAPES, a_mask, a_weight


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_there_and_back(layout: Layout, shape: tuple[int, int]) -> None:
    mask = a_mask(*shape, layout)
    weight = a_weight(*shape, mask)
    packed = pack_as(weight, mask, layout)
    check(packed)
    assert layout_of(packed) == layout and torch.equal(unpack(packed), weight.values)
    assert torch.equal(mask_of(packed), mask)
    assert torch.equal(dense_of(packed), weight.values.float() * weight.scale[:, None])
    again, kept = as_rounded(packed)
    assert torch.equal(pack_as(again, kept, layout), packed)
    assert torch.equal(parts(packed).sum, weight.values.sum(1, dtype=torch.int32))


def test_a_dense_weight_keeps_its_mask() -> None:
    mask = torch.tensor([[True, True, False, True, False, True, True, True, False, True]])
    small = rounded(torch.tensor([[1.0, 1e-9, 0.0, 0.5, 0.0, 0.0, 2.0, 1.0, 0.0, 1.0]]))
    assert torch.equal(mask_of(pack_as(small, mask, Layout("dense"))), mask)  # what was rounded to 0 is kept
    assert bool(mask_of(pack_as(small, torch.ones_like(mask), Layout("dense"))).all())


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


def test_a_mask_that_is_not_made_of_blocks_is_taken_by_blocks_too() -> None:
    mask = torch.rand(40, 90) < 0.1
    weight = a_weight(40, 90, mask)
    for layout in LAYOUTS:
        assert torch.equal(unpack(pack_as(weight, mask, layout)), weight.values), layout


@given(st.integers(0, 2**32 - 1), st.sampled_from([(32, 64), (16, 16), (40, 64), (8, 32)]))
def test_every_entry_is_taken_in_a_window_that_shows_it(seed: int, windows: tuple[int, int]) -> None:
    kept = torch.rand(16, 150, generator=torch.Generator().manual_seed(seed)) < 0.2
    took, steps = schedule(kept, *windows)
    assert torch.equal(took.sum(1), kept.sum(1))
    assert bool((took <= 4 * steps.repeat_interleave(16, 0)).all())


def test_which_layouts_suit() -> None:
    def names(mask: torch.Tensor) -> list[str]:
        return [str(layout)[5:] for layout in layouts(mask)]

    assert names(torch.rand(64, 64) < 0.9) == ["dense"]
    assert names(torch.rand(64, 64) < 0.3) == ["dense", "lookup"]
    assert names(gs.Blocks(0.8, (1, 4)).select(torch.rand(64, 62))) == ["dense", "lookup", "lookup 1x4", "lines 1x4"]
    assert names(gs.Blocks(0.8, (4, 1)).select(torch.rand(64, 64))) == ["dense", "lookup", "lookup 4x1"]
    assert names(gs.Blocks(0.8, (4, 4)).select(torch.rand(64, 64)))[-1] == "lookup 4x4"
    assert names(torch.ones(0, 8, dtype=torch.bool)) == ["dense"]
    assert str(usual(gs.Blocks(0.8, (1, 4)).select(torch.rand(64, 64)))) == "int8 lookup 1x4"


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


@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=str)
def test_bytes_from_outside_are_checked(layout: Layout) -> None:
    mask = a_mask(40, 100, layout)
    packed = pack_as(a_weight(40, 100, mask), mask, layout)
    for part in ("pos", "crd", "line"):
        bad = packed.clone()
        getattr(parts(bad), part).fill_(254 if part != "crd" or layout.kind == "lines" else 200)
        with pytest.raises(ValueError, match=r"must run|outside"):
            check(bad)
    for cut in (packed[:100], packed[:-64], torch.cat([packed, packed[:64]]), packed.int()):
        with pytest.raises(ValueError, match="int8 weight"):
            check(cut)
    for place in (1, 2, 3, 4, 5, 9) if layout.kind == "lines" else range(1, 10):  # numbers of the head that it reads
        bad = packed.clone()
        bad[:128].view(torch.int64)[place] = -5
        with pytest.raises(ValueError):
            check(bad)
