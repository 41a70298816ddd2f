"""Masks of layers are written to the weights that the layers are parts of."""

import torch
from torch import nn

import gossamer as gs
from gossamer.formats import Masked
from gossamer.train.layers import find_layers
from gossamer.train.masks import change, sow


def test_first_masks_and_values():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    before = model[0].weight.detach().clone()
    layers, _ = find_layers(model, None, (), False, False)
    masks = [torch.rand(layer.outputs, layer.inputs) < 0.5 for layer in layers]
    changed = sow(layers, masks, None, torch.Generator().manual_seed(0), lambda parameter: Masked())
    assert [weight.name for weight in changed] == ["0.weight", "2.weight"]
    assert torch.equal(model[0].weight.mask(), masks[0])
    assert torch.equal(model[0].weight.to_dense(), before * masks[0])


def test_of_two_layers_of_a_weight_only_the_given_one_changes():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2)
    layers, _ = find_layers(attention, None, (), False, False)
    parts = [layer for layer in layers if layer.part is not None]
    masks = [torch.ones(layer.outputs, layer.inputs, dtype=torch.bool) for layer in layers]
    sow(layers, masks, None, torch.Generator(), lambda parameter: Masked())
    new = torch.rand(parts[1].outputs, parts[1].inputs) < 0.3
    ((weight, grown),) = change(parts, [None, new, None])
    assert torch.equal(parts[1].mask, new) and bool(parts[0].mask.all()) and bool(parts[2].mask.all())
    assert weight is parts[0].source and not grown.any()
    ((_, grown),) = change([parts[1]], [~new])
    assert int(grown.sum()) == int((~new).sum()) and not parts[1].weight[new].any()


def test_nothing_given_nothing_changed():
    model = gs.sparsify_(nn.Linear(4, 4), "50%")
    layers, _ = find_layers(model, None, (), False, False)
    assert change(layers, [None]) == []
