"""Every weight is read so that a row holds what one output multiplies: checked against the module itself."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gossamer as gs
from gossamer.methods import layers_of, survey
from gossamer.models.weights import all_weights


def test_by_hand():
    module = nn.ConvTranspose1d(2, 3, 1, bias=False)
    module.weight.data = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])[:, :, None]  # inputs, outputs, window
    (layer,) = layers_of(all_weights(module)["weight"])
    assert layer.matrix(layer.dense()).tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    assert (layer.outputs, layer.inputs, layer.size, layer.shape) == (3, 2, 6, (3, 2, 1))


MODULES = [
    nn.Linear(4, 6),
    nn.Conv1d(4, 6, 3),
    nn.Conv2d(4, 6, (3, 2), groups=2),
    nn.Conv3d(2, 3, 2),
    nn.ConvTranspose1d(4, 6, 3),
    nn.ConvTranspose2d(4, 6, (3, 2), groups=2),
    nn.ConvTranspose3d(2, 4, 2, groups=2),
]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_row_is_one_output(module):
    """Without one row of the matrix, one output, and no other, is its bias alone."""
    (layer,) = layers_of(all_weights(module)["weight"])
    x = torch.randn(2, 4 if not isinstance(module, nn.Conv3d | nn.ConvTranspose3d) else 2, *[5] * len(layer.shape[2:]))
    matrix = layer.matrix(layer.dense()).clone()
    with torch.no_grad():
        before = module(x)
        matrix[1] = 0
        layer.put(module.weight, matrix)
        after = module(x)
    same = [torch.equal(a, b) for a, b in zip(before.movedim(1, 0), after.movedim(1, 0), strict=True)]
    assert same == [i != 1 for i in range(layer.outputs)]
    assert torch.equal(after[:, 1], module.bias.detach()[1].expand_as(after[:, 1]))


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_put_is_the_way_back(module):
    (layer,) = layers_of(all_weights(module)["weight"])
    matrix = torch.randn(layer.outputs, layer.inputs)
    target = torch.zeros(module.weight.shape)
    layer.put(target, matrix)
    assert torch.equal(layer.matrix(target), matrix) and layer.matrix(target).is_contiguous()
    mask = torch.zeros(module.weight.shape, dtype=torch.bool)
    layer.put(mask, matrix > 0)
    assert torch.equal(mask, target > 0)


def test_conv1d_of_transformers_is_transposed():
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    module = Conv1D(6, 4)
    (layer,) = layers_of(all_weights(module)["weight"])
    x = torch.randn(3, 4)
    torch.testing.assert_close(F.linear(x, layer.matrix(layer.dense()), module.bias), module(x))


def test_attention_is_three_matrices():
    module = nn.MultiheadAttention(8, 2)
    layers = layers_of(replace(all_weights(module)["in_proj_weight"], name="a.in_proj_weight"))
    assert [layer.name for layer in layers] == [f"a.in_proj_weight[{x}]" for x in "qkv"]
    assert all(layer.parameter_name == "a.in_proj_weight" and layer.shape == (8, 8) for layer in layers)
    joined = torch.cat([layer.matrix(layer.dense()) for layer in layers])
    assert torch.equal(joined, module.in_proj_weight.detach())
    apart = nn.MultiheadAttention(8, 2, kdim=4, vdim=6)
    shapes = {layer.name: layer.shape for layer in survey(apart).layers}
    assert shapes["k_proj_weight"] == (8, 4) and shapes["v_proj_weight"] == (8, 6)


class ToyExperts(nn.Module):
    def __init__(self, inputs_first):
        super().__init__()
        wide, narrow = ((8, 12), (6, 8)) if inputs_first else ((12, 8), (8, 6))
        self.gate_up_proj = nn.Parameter(torch.randn(3, *wide))  # from 8 to 2 x 6
        self.down_proj = nn.Parameter(torch.randn(3, *narrow))  # from 6 to 8


@pytest.mark.parametrize("inputs_first", [False, True])
@pytest.mark.parametrize("told", [False, True])
def test_experts_are_a_matrix_each(inputs_first, told):
    module = ToyExperts(inputs_first)
    if told:
        module.is_transposed = inputs_first
    for name, shape in (("gate_up_proj", (12, 8)), ("down_proj", (8, 6))):
        layers = layers_of(all_weights(module)[name])
        assert [layer.name for layer in layers] == [f"{name}[{i}]" for i in range(3)]
        assert all(layer.shape == shape and layer.inputs_first == inputs_first for layer in layers)
        one = getattr(module, name).detach()[1]
        assert torch.equal(layers[1].matrix(layers[1].dense()), one.t() if inputs_first else one)


def test_sparse_parameters_are_read_as_dense_ones():
    module = gs.sparsify_(nn.Linear(8, 4), "2:4")
    (layer,) = layers_of(all_weights(module)["weight"])
    assert torch.equal(layer.matrix(layer.dense()), module.weight.detach().to_dense())
