import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import gossamer as gs
from gossamer.models.pack.foreign import apply_masks


def test_masks_become_zeros_and_results_stay():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    prune.l1_unstructured(model[0], "weight", amount=0.75)
    prune.random_unstructured(model[0], "bias", amount=0.5)
    x = torch.randn(4, 64)
    expected = model(x).detach()
    assert apply_masks(model) == ["0.weight", "0.bias"]
    assert set(model[0].state_dict()) == {"weight", "bias"}
    assert torch.equal(model(x), expected)
    assert apply_masks(model) == []


@pytest.mark.parametrize("twice", [False, True])
def test_pack_finds_them(twice):
    model = nn.Sequential(nn.Linear(256, 256))
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    if twice:
        prune.l1_unstructured(model[0], "weight", amount=0.5)  # of what is left
    x = torch.randn(2, 256)
    expected = model(x).detach()
    report = gs.pack_(model, x, tune=False)
    assert [(row.name, round(row.sparsity, 2)) for row in report.layers] == [("0.weight", 0.75 if twice else 0.5)]
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


def test_models_without_such_masks_are_left_alone():
    model = nn.Linear(8, 8)
    assert apply_masks(model) == []
