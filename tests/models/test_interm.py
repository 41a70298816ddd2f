"""Activations by name: outputs of modules, and of operators inside them."""

import copy
import pickle

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.models.interm import FormatOutput, OperatorFormats, format_output, record_names

HALF = gs.Output.of((None, None, "50%", gs.CSR()))
X = torch.tensor([[4.0, -1.0, 2.0, -5.0]])


class Twice(nn.Module):
    def forward(self, x):
        assert x.shape[0] == 1  # asked of the tensor, and no operator
        y = x + 1
        return torch.relu(y + x)


class Fails(nn.Module):
    def forward(self, x):
        raise RuntimeError("no")


def test_names_of_modules_and_operators_by_hand():
    model = nn.Sequential(Twice(), nn.Linear(4, 2))
    assert record_names(model, (X,), {}) == ["0", "0:add", "0:add_1", "0:relu", "1", "1:linear"]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_hooks_are_gone_when_a_model_fails():
    model = nn.Sequential(nn.Linear(4, 4), Fails())
    with pytest.raises(RuntimeError, match="no"):
        record_names(model, (X,), {})
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert type(torch.add(X, 1)) is torch.Tensor and not torch.overrides._get_current_function_mode_stack()


def test_an_output_goes_through_a_format():
    assert format_output(X, HALF, gradient=False).to_dense().tolist() == [[4.0, 0.0, 0.0, -5.0]]
    x = X.clone().requires_grad_()
    out = format_output(x, HALF, gradient=True)
    assert out.tolist() == X.tolist()
    (out * torch.tensor([[1.0, 2.0, 3.0, 4.0]])).sum().backward()
    assert x.grad.to_dense().tolist() == [[0.0, 0.0, 3.0, 4.0]]


def test_of_a_tuple_the_first_and_integers_as_they_are():
    out = format_output((X, "rest"), HALF, gradient=False)
    assert type(out) is tuple and out[0].format == gs.CSR() and out[1] == "rest"
    assert type(format_output([X], HALF, gradient=False)) is list
    numbers = torch.arange(3)
    assert format_output(numbers, HALF, gradient=False) is numbers
    for wrong in ({"a": X}, (), None):
        with pytest.raises(TypeError, match="must be a tensor or a tuple that starts with one, not"):
            format_output(wrong, HALF, gradient=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_hook_is_copied_with_its_module(copied):
    layer = nn.Identity()
    layer.register_forward_hook(FormatOutput(HALF, gradient=False))
    assert copied(layer)(X).format == gs.CSR()


def test_one_operator_of_a_module_by_its_number():
    module = Twice()
    own = OperatorFormats.of(module)
    assert OperatorFormats.of(module) is own and len(module._forward_hooks) == 1
    own.add("add_1", HALF, gradient=False)  # (x + 1) + x = 9, -1, 5, -9
    with gs.fallback("silent"):
        out = module(X)
    assert torch.as_tensor(out.to_dense()).tolist() == [[9.0, 0.0, 0.0, 0.0]]  # -9, which is kept, meets relu
    assert own.running == []


def test_a_name_that_no_operator_had_is_an_error_but_a_failure_is_told_first():
    module = Twice()
    OperatorFormats.of(module).add("mul", HALF, gradient=False)
    with pytest.raises(ValueError, match="no operator in Twice is called 'mul'; "):
        module(X)
    module = Fails()
    own = OperatorFormats.of(module)
    own.add("mul", HALF, gradient=False)
    with pytest.raises(RuntimeError, match="no"):
        module(X)
    assert own.running == [] and not torch.overrides._get_current_function_mode_stack()
    assert pickle.loads(pickle.dumps(own)).specs == own.specs
