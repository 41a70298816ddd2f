"""How layers compute with a stored weight."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from gossamer.core import table
from gossamer.core.fallback import watch
from gossamer.kernels.vnm.product import VnmProduct
from gossamer.models.forward import for_layer

W = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, -1.0]])


def layer(format=None, bias=True, dtype=torch.float32):
    made = nn.Linear(3, 2, bias=bias, dtype=dtype)
    gs.nn.all_weights(made)["weight"].become(W.to(dtype), W != 0, format or gs.CSR())
    if bias:
        made.bias.data.copy_(torch.tensor([10.0, 20.0]))
    return made


def test_which_layers_have_a_forward_of_ours():
    class Mine(nn.Linear):
        def forward(self, input):
            return super().forward(input)

    class Same(nn.Linear):
        pass

    assert for_layer(nn.Linear) is not None and for_layer(Same) is not None and for_layer(nn.Conv2d) is not None
    for own in (Mine, nn.LayerNorm, nn.Conv1d, nn.Embedding):
        assert for_layer(own) is None


@pytest.mark.parametrize("format", [gs.CSR(), gs.COO(), gs.ELL(), gs.formats.PackedCSR()], ids=repr)
def test_by_hand_for_inputs_of_any_dimensions(format):
    made, x = layer(format), torch.tensor([1.0, 2.0, 3.0])
    want = [14.0, 20.0]
    assert made(x).tolist() == want
    assert made(x.expand(4, 3)).tolist() == [want] * 4
    assert made(x.expand(2, 2, 3)).tolist() == [[want] * 2] * 2
    assert made(torch.ones(0, 3)).shape == (0, 2)
    assert layer(format, bias=False)(x).tolist() == [4.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_types_are_kept_and_others_are_torchs_error(dtype):
    made = layer(dtype=dtype)
    assert made(torch.tensor([1.0, 2.0, 3.0], dtype=dtype)).tolist() == [14.0, 20.0]
    assert made(torch.ones(3, dtype=dtype)).dtype is dtype
    with pytest.raises(RuntimeError), gs.fallback("silent"):
        made(torch.ones(2, 3))
    with pytest.raises(RuntimeError), gs.fallback("silent"):
        layer()(torch.ones(2, 4))


def test_gradients_by_hand():
    made, x = layer(), torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    made(x).backward(torch.tensor([[1.0, 10.0]]))
    assert x.grad.tolist() == [[30.0, 2.0, -10.0]]
    assert made.weight_values.grad.tolist() == [2.0, 10.0, 30.0] and made.bias.grad.tolist() == [1.0, 10.0]


def test_autocast_computes_in_its_type():
    made = layer()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert made(torch.ones(2, 3)).dtype is torch.bfloat16


@pytest.fixture
def table_as_before():
    before = {name: list(entries) for name, entries in table._TABLE.items()}
    yield
    table._TABLE.clear()
    table._TABLE.update(before)
    table._FOUND.clear()
    table._version += 1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("formats", [(gs.Dense, gs.CSR), (gs.Dense, gs.CSR, gs.Dense)], ids=len)
def test_a_kernel_of_the_user_is_used_even_if_the_layer_ran_before(table_as_before, formats, bias):
    made, x = layer(bias=bias), torch.ones(1, 3)
    before = made(x).tolist()
    gs.implements(F.linear, formats)(lambda x, w, bias=None: torch.full((1, 2), 7.0))
    takes = len(formats) == 3 or not bias  # one that was registered without a bias gets no call with one
    assert made(x).tolist() == ([[7.0, 7.0]] if takes else before)


def test_who_watches_sees_the_call_and_a_lent_weight_is_used():
    made = layer()
    with watch() as seen:
        made(torch.ones(1, 3))
    assert [ran.operator for ran in seen] == ["linear"]
    out = torch.func.functional_call(made, {"weight": torch.ones(2, 3)}, torch.ones(1, 3))
    assert out.tolist() == [[13.0, 23.0]]


def test_a_trace_computes_the_same():
    made, x = layer(), torch.tensor([[1.0, 2.0, 3.0]])
    torch._dynamo.reset()
    assert torch.compile(made, backend="eager", fullgraph=True)(x).tolist() == [[14.0, 20.0]]
    conv = gs.sparsify_(nn.Conv2d(2, 3, 3, padding=1), "50%", format=gs.CSR())
    image = torch.randn(1, 2, 4, 4)
    torch.testing.assert_close(torch.compile(conv, backend="eager", fullgraph=True)(image), conv(image))
    torch._dynamo.reset()


def test_a_layer_calls_its_operator_until_something_changes(monkeypatch):
    calls = []

    def operator(self, values):
        def run(x, values, bias):
            calls.append(x.shape)
            return self.forward(x, values, bias)

        return run

    monkeypatch.setattr(VnmProduct, "operator", operator)
    layer = nn.Linear(64, 64)
    gs.sparsify_(layer, "2:4", format=gs.formats.PackedVNM("all", 2, 4))
    x = torch.randn(2, 3, 64)
    with torch.no_grad():
        first = layer(x)
        assert not calls and torch.equal(layer(x), first) and calls == [x.shape]
        assert layer(x[0, 0]).shape == (64,) and layer(x.mT.contiguous().mT).shape == first.shape
        assert len(calls) == 2  # not for a vector
        layer.bias = nn.Parameter(layer.bias + 1)
        torch.testing.assert_close(layer(x), first + 1)
        layer.weight_meta1.zero_()  # invalid metadata is found, not computed with
        with pytest.raises(ValueError, match="meta"):
            layer(x)
    assert len(calls) == 2
