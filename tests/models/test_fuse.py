"""Packed layers in a row: one activation the fewer, the same numbers, names and gradients."""

import copy

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.formats import PackedVNM
from gossamer.models import FusedLinear, fuse_
from gossamer.models.modules import dense_class

FORMAT = PackedVNM("all", 2, 8)


def model(activation, format=FORMAT):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 96), activation, nn.Linear(96, 32), nn.Tanh(), nn.Linear(32, 16), nn.ReLU())
    return gs.sparsify_(net, gs.VNM("all", 2, 8), format=format)


@pytest.mark.parametrize("tokens", [3, 70])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.SiLU(), nn.GELU("tanh"), nn.Tanh()])
def test_same_numbers_names_and_gradients(activation, tokens):
    net = model(activation)
    fused = fuse_(copy.deepcopy(net))
    x = torch.randn(tokens, 64)
    torch.testing.assert_close(fused(x), net(x), rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), net(x), rtol=1e-5, atol=1e-6)
        assert fused(x).is_contiguous()
    assert list(fused.state_dict()) == list(net.state_dict())
    for one in (net, fused):
        one(x).square().sum().backward()
    for a, b in zip(net.parameters(), fused.parameters(), strict=True):
        a, b = (g.to_dense() if isinstance(g, gs.SparseTensor) else g for g in (a.grad, b.grad))
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_what_becomes_of_a_chain():
    net = fuse_(model(nn.GELU()))
    assert [dense_class(m) for m in net] == [FusedLinear, nn.Identity, FusedLinear, nn.Tanh, FusedLinear, nn.Identity]
    assert [net[i].activation for i in (0, 2, 4)] == ["gelu", None, "relu"]
    assert [(net[i].first, net[i].last) for i in (0, 2, 4)] == [(True, False), (False, True), (False, False)]
    assert fuse_(net)[0] is net[0]


def test_inside_the_chain_activations_are_feature_major():
    net, seen = fuse_(model(nn.GELU())), []
    net[2].register_forward_pre_hook(lambda module, args: seen.append(args[0].stride()))
    with torch.no_grad():
        net(torch.randn(72, 64))
        assert net(torch.randn(3, 30, 64)).is_contiguous()
        net(torch.randn(2, 64))
    assert seen == [(1, 72), (30, 1, 96), (96, 1)]


def test_others_are_left_alone():
    net = fuse_(model(nn.GELU(), gs.CSR()))
    assert [dense_class(m) for m in net] == [nn.Linear, nn.GELU, nn.Linear, nn.Tanh, nn.Linear, nn.ReLU]
    net = model(nn.GELU())
    net[1].register_forward_hook(lambda *args: None)
    assert type(fuse_(net)[1]) is nn.GELU


def test_a_fused_chain_compiles_in_one_graph():
    net = fuse_(model(nn.GELU()))
    x = torch.randn(70, 64)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), net(x), rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-5, atol=1e-6)
