"""Dense gradients for an update, of one step or averaged over several."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.train.gradients import Gradients
from gossamer.train.layers import find_layers


def made(format, several=False):
    torch.manual_seed(0)
    model = gs.sparsify_(nn.Linear(6, 4, bias=False), "50%", format=format)
    layers, _ = find_layers(model, None, (), False, False)
    return model, layers[0], Gradients(layers, lambda grad: grad, several)


def backward(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    with torch.no_grad():
        return 2 * model(x).t() @ x


@pytest.mark.parametrize("format", [gs.Masked(), gs.CSR()])
def test_the_dense_gradient_of_one_step(format):
    model, layer, gradients = made(format)
    backward(model, torch.randn(5, 6))
    assert not gradients.take() and gradients.of(layer.parameter) is None  # nobody has asked
    gradients.ask(True)
    want = backward(model, torch.randn(5, 6))
    gradients.take()
    torch.testing.assert_close(gradients.of(layer.parameter), want)
    assert gradients.of(layer.parameter) is None  # given away
    gradients.ask(False)
    backward(model, torch.randn(5, 6))
    gradients.take()
    assert gradients.of(layer.parameter) is None


@pytest.mark.parametrize("format", [gs.Masked(), gs.CSR()])
def test_the_mean_of_several_steps_and_its_state(format):
    model, layer, gradients = made(format, several=True)
    gradients.ask(True)
    wants = []
    for _ in range(3):
        wants.append(backward(model, torch.randn(5, 6)))
        assert gradients.take()
    state = gradients.state_dict()
    other = Gradients([layer], lambda grad: grad, True)
    other.load_state_dict(state)
    for each in (gradients, other):
        torch.testing.assert_close(each.of(layer.parameter), sum(wants) / 3)


def test_one_step_has_no_state():
    model, _, gradients = made(gs.Masked())
    gradients.ask(True)
    backward(model, torch.randn(5, 6))
    gradients.take()
    assert gradients.state_dict() == {}


def test_ranks_average():
    model, layer, _ = made(gs.Masked())
    gradients = Gradients([layer], lambda grad: grad / 2)
    gradients.ask(True)
    want = backward(model, torch.randn(5, 6))
    gradients.take()
    torch.testing.assert_close(gradients.of(layer.parameter), want / 2)
