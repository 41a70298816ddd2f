"""Stored weights: what a module checks of its arrays, reads, and takes."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.models.stored import Owner, array_names, read, set_data, store, structure_of

X = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
Y = torch.tensor([[5.0, 0.0], [6.0, 7.0]])


def layer(format=None):
    made = nn.Linear(2, 2, bias=False)
    gs.nn.all_weights(made)["weight"].become(X, X != 0, format or gs.CSR())
    return made


def held(module):
    return module._sparse["weight"]


def test_names_of_arrays():
    assert array_names(held(layer())) == ["pos1", "crd1"]
    assert array_names(held(layer(gs.COO()))) == ["pos0", "crd0", "crd1"]


def test_a_structure_is_checked_once_and_again_when_an_array_is_another_or_written():
    module = layer()
    first = structure_of(module, "weight", held(module))
    assert structure_of(module, "weight", held(module)) is first
    module._buffers["weight_crd1"] = module.weight_crd1.clone()
    second = structure_of(module, "weight", held(module))
    assert second is not first and structure_of(module, "weight", held(module)) is second
    module.weight_crd1.add_(9)
    with pytest.raises(ValueError, match=r"crd has coordinates 9 .. 10"):
        structure_of(module, "weight", held(module))


def test_what_is_read_shares_the_values_and_carries_marks():
    module = layer()
    module.weight_values.note = "from transformers"
    with torch.no_grad():
        weight = read(module, "weight", held(module))
    assert weight.format == gs.CSR() and weight._values.data_ptr() == module.weight_values.data_ptr()
    assert weight.note == "from transformers" and not hasattr(weight, "home")
    assert isinstance(weight._owner, Owner) and not weight.requires_grad


def test_gradients_at_the_stored_positions_or_collected_everywhere():
    module = layer()
    module(torch.tensor([[1.0, 10.0]])).sum().backward()
    assert module.weight_values.grad.tolist() == [10.0, 1.0]
    assert module.weight.grad.to_dense().tolist() == [[0.0, 10.0], [1.0, 0.0]]
    module.zero_grad()
    held(module).collects = True
    module(torch.tensor([[1.0, 10.0]])).sum().backward()
    assert module.weight_values.grad.tolist() == [10.0, 1.0]
    assert held(module).collected.tolist() == [[1.0, 10.0], [1.0, 10.0]]
    module.weight_values.grad = None
    assert module.weight.grad is None


def test_another_pattern_in_the_same_parameter():
    module = layer()
    parameter, other = module.weight_values, gs.from_dense(Y, gs.CSR())
    store(module, "weight", other._values, other.structure)
    assert module.weight_values is parameter and module.weight.to_dense().tolist() == Y.tolist()
    assert module(torch.tensor([[1.0, 1.0]])).tolist() == [[5.0, 13.0]]
    assert structure_of(module, "weight", held(module)) is other.structure  # no second check


def test_a_write_to_the_weight_goes_to_the_module():
    module = layer()
    with torch.no_grad():
        module.weight.copy_(gs.from_dense(Y, gs.CSR()))
    assert module.weight.to_dense().tolist() == Y.tolist() and module.weight_values.shape == (3,)


def test_another_format_is_refused():
    other = gs.from_dense(Y, gs.COO())
    with pytest.raises(ValueError, match=r"weight is stored in CSR\(\); a pattern in COO\(\) can't take its place"):
        store(layer(), "weight", other._values, other.structure)


def test_data_of_another_shape_while_a_graph_is_alive():
    parameter = nn.Parameter(torch.ones(2))
    alive = (parameter * 2).sum()
    alive.backward(retain_graph=True)
    set_data(parameter, torch.ones(3))
    assert parameter.grad is None
    (parameter * 5).sum().backward()  # would fail at the node of the old shape
    assert parameter.grad.tolist() == [5.0, 5.0, 5.0]
    del alive
    set_data(parameter, torch.zeros(3))
    assert parameter.grad.tolist() == [5.0, 5.0, 5.0] and parameter.tolist() == [0.0, 0.0, 0.0]


def test_data_for_a_parameter_on_the_meta_device():
    parameter = nn.Parameter(torch.ones(2, device="meta"), requires_grad=False)
    set_data(parameter, torch.tensor([1.0, 2.0, 3.0]))
    assert parameter.tolist() == [1.0, 2.0, 3.0] and not parameter.requires_grad and type(parameter) is nn.Parameter


@pytest.mark.parametrize("format", [gs.CSR(), gs.COO(), gs.ELL(), gs.BSR((2, 2)), gs.formats.PackedCSR()], ids=str)
@pytest.mark.parametrize("length", [0, 1, 3, 1000])
def test_values_of_another_length_are_refused_before_a_kernel_reads_them(format, length):
    """However they came there: a kernel reads as many as the index arrays have entries."""
    x = torch.randn(4, 16)
    for place in ("functional_call", "attribute", "data"):
        model = gs.sparsify_(nn.Linear(16, 16), "50%", format=format)
        model(x)
        with pytest.raises(ValueError, match="the values are"):
            if place == "functional_call":
                torch.func.functional_call(model, {"weight_values": torch.zeros(length)}, x)
            elif place == "attribute":
                model.weight_values = nn.Parameter(torch.zeros(length))
                model(x)
            else:
                model.weight_values.data = torch.zeros(length)
                model(x)
