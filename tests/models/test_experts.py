"""Experts as rows of one matrix, whichever way their module holds them."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.models.experts import as_rows, experts_hold_inputs_first, from_rows, is_experts


class MyExperts(nn.Module):
    def __init__(self, inputs_first=False):
        super().__init__()
        up, down = ((8, 24), (12, 8)) if inputs_first else ((24, 8), (8, 12))
        self.gate_up_proj = nn.Parameter(torch.randn(3, *up))
        self.down_proj = nn.Parameter(torch.randn(3, *down))


def test_which_modules():
    assert is_experts(MyExperts(), (3, 4, 5))
    assert not is_experts(MyExperts(), (4, 5))
    assert not is_experts(nn.Linear(2, 2), (3, 4, 5))


@pytest.mark.parametrize("inputs_first", [False, True])
def test_rows_are_outputs(inputs_first):
    module = MyExperts(inputs_first)
    assert experts_hold_inputs_first(module) is inputs_first
    rows = as_rows(module.gate_up_proj, inputs_first)
    assert rows.shape == (72, 8)
    assert torch.equal(from_rows(rows, module.gate_up_proj.shape, inputs_first), module.gate_up_proj)


@pytest.mark.parametrize("inputs_first", [False, True])
def test_sparsify_takes_them_along_their_inputs(inputs_first):
    model = gs.sparsify_(nn.Sequential(MyExperts(inputs_first), nn.Linear(8, 8)), "2:4")
    for row in gs.summary(model).rows:
        assert row.density == (0.5 if len(row.shape) > 1 else 1.0)
    rows = as_rows(model[0].gate_up_proj.mask(), inputs_first)
    assert (rows.view(72, 2, 4).sum(2) == 2).all()
