"""Where a parameter of a sparse module belongs."""

import gc
import pickle

import torch
from torch import nn

import gossamer as gs
from gossamer.models.home import GRAD, Home, home_of, move_out, version_of

MASK = torch.tensor([[True, False], [False, True]])


def masked():
    layer = nn.Linear(2, 2, bias=False)
    gs.nn.all_weights(layer)["weight"].become(torch.ones(2, 2), MASK, gs.Masked())
    return layer


def test_a_parameter_leads_back_to_its_module_and_mask():
    layer = masked()
    home = home_of(layer.weight)
    assert home.module() is layer and home.name == "weight" and home.mask.tolist() == MASK.tolist()
    assert home.held is layer._sparse["weight"]
    assert home_of(nn.Linear(2, 2).weight) is None


def test_it_does_not_keep_the_module_alive():
    layer = masked()
    weight = layer.weight
    home = home_of(weight)
    del layer
    gc.collect()
    assert home.module() is None
    weight.grad = torch.ones(2, 2)
    assert not home.masks(weight.grad)


def test_which_gradients_are_cleared():
    home = home_of(masked().weight)
    layer = masked()
    home = home_of(layer.weight)
    grad = torch.ones(2, 2)
    assert home.masks(grad)
    home.cleaned(grad)
    assert not home.masks(grad)  # clear since
    grad.add_(1)
    assert home.masks(grad)  # written again
    for other in (torch.ones(2, 3), torch.ones(2, 2, device="meta"), gs.from_dense(grad, gs.CSR())):
        assert not home.masks(other)
    home.held.open = True
    assert not home.masks(grad)


def test_a_gradient_of_somebody_else_is_not_written():
    layer = masked()
    home, grad = home_of(layer.weight), torch.ones(2, 2)
    assert home.owns(grad)
    layer.weight.grad = grad
    assert not home.owns(grad) and home.owns(torch.ones(2, 2))
    assert not home.owns(torch.ones(2, 2, requires_grad=True)) and not home.owns(grad.to_sparse())


def test_gradients_at_every_position_are_collected_while_somebody_wants_them():
    layer = masked()
    weight = gs.nn.all_weights(layer)["weight"]
    weight.collect_gradient(True)
    home = home_of(layer.weight)
    assert home.watches and len(home.hooks) == 1
    for _ in range(2):
        layer(torch.tensor([[1.0, 2.0]])).sum().backward()
    assert home.held.collected.tolist() == [[2.0, 4.0], [2.0, 4.0]]
    assert layer.weight.grad.tolist() == [[2.0, 0.0], [0.0, 4.0]]
    layer.weight.grad = None
    layer(torch.tensor([[1.0, 2.0]])).sum().backward()
    assert home.held.collected.tolist() == [[1.0, 2.0], [1.0, 2.0]]  # it starts again with .grad
    weight.collect_gradient(False)
    assert home.hooks == [] and home.held.collected is None


def test_a_sparse_gradient_is_collected_as_a_dense_one():
    layer = masked()
    home = home_of(layer.weight)
    grad = home.collect(layer.weight, torch.tensor([[0.0, 3.0], [0.0, 0.0]]).to_sparse())
    assert grad.layout is torch.strided and home.held.collected.tolist() == [[0.0, 3.0], [0.0, 0.0]]


def test_moved_out_the_gradient_is_an_ordinary_one():
    layer = masked()
    weight = layer._parameters["weight"]
    gs.nn.all_weights(layer)["weight"].collect_gradient(True)
    home = home_of(weight)
    move_out(weight)
    assert home_of(weight) is None and home.hooks == []
    (weight * 3).sum().backward()
    assert GRAD.__get__(weight).tolist() == [[3.0, 3.0], [3.0, 3.0]]
    move_out(weight)  # again is fine


def test_a_home_is_not_pickled():
    assert pickle.loads(pickle.dumps(Home(nn.Linear(1, 1), "weight", None))) == {}


def test_versions():
    t = torch.zeros(2)
    assert version_of(t) == 0 and version_of(t.add_(1)) == 1
    with torch.inference_mode():
        assert version_of(torch.zeros(2)) == -1


def test_a_gradient_is_made_sparse_in_the_format_asked_for():
    layer = nn.Linear(4, 1, bias=False)
    how = gs.Output.of((None, None, "75%", gs.CSR()))
    gs.nn.all_weights(layer)["weight"].sparsify_gradient(how)
    layer(torch.tensor([[1.0, -4.0, 2.0, 3.0]])).sum().backward()
    assert layer.weight.grad.format == gs.CSR()
    assert layer.weight.grad.to_dense().tolist() == [[0.0, -4.0, 0.0, 0.0]]
    assert home_of(layer._parameters["weight"]).held.latest is layer.weight.grad
