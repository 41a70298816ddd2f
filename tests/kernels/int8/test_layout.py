"""Bytes and back: packing in every layout, which layouts suit a pattern, bytes from outside."""

from __future__ import annotations

import pytest
import torch

import gossamer as gs
from gossamer import native
from gossamer.kernels.int8.layout import Layout, as_rounded, dense_of, layout_of, layouts, pack_as, usual
from gossamer.kernels.int8.unpack import check, mask_of, unpack
from gossamer.kernels.int8.weight import parts
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


def test_bitmaps_are_usual_with_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "int8_isa", lambda: "amx")
    half, few, most = (torch.rand(64, 64) < share for share in (0.5, 0.05, 0.75))
    assert [str(layout) for layout in layouts(half)] == ["int8 dense", "int8 bitmap", "int8 lookup"]
    assert [str(layout) for layout in layouts(most)] == ["int8 dense", "int8 bitmap"]
    assert [str(layout) for layout in layouts(torch.ones(64, 64, dtype=torch.bool))] == ["int8 dense"]
    assert str(usual(half)) == str(usual(most)) == "int8 bitmap" and str(usual(few)) == "int8 lookup"
    layer = gs.quantize_(gs.sparsify_(torch.nn.Linear(64, 64), "50%"), "int8")
    assert str(layer.layout) == "int8 bitmap" and layer.nnz == 2048
    gs.pack_(layer, torch.randn(4, 64), tune=False, quiet=True)  # the model of costs knows it


def test_bitmaps_are_measured_where_values_are_expanded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    half = torch.rand(64, 64) < 0.5
    for isa, found in {"avx512vbmi": ["dense", "bitmap", "lookup"], "avx512vnni": ["dense", "lookup"]}.items():
        monkeypatch.setattr(native, "int8_isa", lambda isa=isa: isa)
        assert [str(layout)[5:] for layout in layouts(half)] == found and str(usual(half)) == "int8 lookup"
        assert str(usual(torch.rand(64, 64) < 0.75)) == "int8 dense"


def test_which_layouts_suit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "int8_isa", lambda: "avx512vnni")

    def names(mask: torch.Tensor) -> list[str]:
        return [str(layout)[5:] for layout in layouts(mask)]

    assert names(torch.rand(64, 64) < 0.9) == ["dense"]
    assert names(torch.rand(64, 64) < 0.3) == ["dense", "lookup"]
    assert names(gs.Blocks(0.8, (1, 4)).select(torch.rand(64, 62))) == ["dense", "lookup", "lookup 1x4", "lines 1x4"]
    assert names(gs.Blocks(0.8, (4, 1)).select(torch.rand(64, 64))) == ["dense", "lookup", "lookup 4x1"]
    assert names(gs.Blocks(0.8, (4, 4)).select(torch.rand(64, 64)))[-1] == "lookup 4x4"
    assert names(torch.ones(0, 8, dtype=torch.bool)) == ["dense"]
    assert str(usual(gs.Blocks(0.8, (1, 4)).select(torch.rand(64, 64)))) == "int8 lookup 1x4"
