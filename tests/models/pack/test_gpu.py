"""What pack_ finds in a pattern on a GPU; that it measures there is shown in tests/gpu."""

import pytest
import torch

import gossamer as gs
from gossamer.formats import Condensed, Dense, PackedBitmap, PackedCSR, PackedVNM
from gossamer.models.pack.gpu import fitting, guess


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (gs.NM(2, 4), PackedVNM("all", 2, 4)),
        (gs.VNM("all", 2, 8), PackedVNM("all", 2, 8)),
        (gs.VNM(64, 2, 16), PackedVNM(64, 2, 16)),
        (gs.VNM(32, 2, 100), PackedVNM(32, 2, 100)),
        (gs.VNM(128, 2, 10), PackedVNM(128, 2, 10)),
    ],
    ids=str,
)
def test_the_pattern_is_found_from_its_mask(how, expected):
    found = fitting(how.select(torch.rand(256, 403)), torch.float16)
    assert found[0] == expected


def test_others_are_rows():
    half = torch.float16
    assert fitting(gs.Unstructured(0.9).select(torch.rand(256, 400)), half) == [PackedBitmap(), PackedCSR()]
    assert fitting(gs.Unstructured(0.9).select(torch.rand(256, 400)), torch.float32) == [PackedCSR()]
    assert fitting(gs.Unstructured(0.45).select(torch.rand(256, 400)), half) == [PackedBitmap()]
    assert fitting(gs.FanIn(0.9).select(torch.rand(256, 400)), half) == [PackedBitmap(), Condensed()]
    assert fitting(gs.Unstructured(0.2).select(torch.rand(256, 400)), half) == []
    assert PackedVNM("all", 2, 4) not in fitting(gs.NM(2, 4).select(torch.rand(64, 64)), torch.float32)
    assert (
        fitting(torch.zeros(4, 0, dtype=torch.bool), half) == [] == fitting(torch.zeros(4, 8, dtype=torch.bool), half)
    )


def test_the_model_of_costs_prefers_fewer_bytes_and_products():
    size, kept = 4096 * 4096, 4096 * 4096 // 4
    for tokens in (1, 4096):
        dense = guess(Dense(), 4096, 4096, size, tokens, 2)
        assert guess(PackedVNM("all", 2, 8), 4096, 4096, kept, tokens, 2) < dense
    assert guess(PackedCSR(), 4096, 4096, kept, 4096, 2) > guess(Dense(), 4096, 4096, size, 4096, 2)
    assert guess(PackedBitmap(), 4096, 4096, kept, 8, 2) < guess(Dense(), 4096, 4096, size, 8, 2)
    assert guess(PackedBitmap(), 4096, 4096, kept, 4096, 2) > guess(Dense(), 4096, 4096, size, 4096, 2)
