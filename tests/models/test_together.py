"""Packed layers that share a launch: who does, that numbers are the same, and that others see single layers."""

import copy
import pickle

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.formats import PackedVNM
from gossamer.models import together
from gossamer.models.group import group_


class Block(nn.Module):
    def __init__(self, rows=(256, 128, 128), bias=False):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(128, n, bias=bias) for n in rows)

    def forward(self, x):
        return torch.cat([self.q(x), self.k(x), self.v(x)], -1)


def block(**options):
    torch.manual_seed(0)
    return gs.sparsify_(Block(**options), "2:4", format=PackedVNM("all", 2, 4))


@pytest.fixture
def launches(monkeypatch):
    """Let a CPU do what a GPU does; returns the calls."""
    made, run = [], torch.ops.gossamer.vnm_group.default

    class Seen:
        @staticmethod
        def default(*operands):
            made.append(operands)
            return run(*operands)

    monkeypatch.setattr(together, "_most_tokens", lambda rows, device: 64)
    monkeypatch.setattr(together, "_on_gpu", lambda x: True)
    monkeypatch.setattr(torch.ops.gossamer, "vnm_group", Seen)
    return made


def test_one_launch_for_all(launches):
    model, x = block(), torch.randn(2, 3, 128)
    with torch.no_grad():
        expected = model(x)
        assert group_(model, x) == [("q", "k", "v")]
        torch.testing.assert_close(model(x), expected)
        assert len(launches) == 1 and model.q.__dict__["_together"][0].ready is None
        torch.testing.assert_close(model.k(x), expected[..., 256:384])  # one of them only
        x.mul_(2)
        torch.testing.assert_close(model.v(x), 2 * expected[..., 384:])  # not what was computed before
    with torch.inference_mode():
        torch.testing.assert_close(model(x), 2 * expected)


def test_each_for_itself(launches):
    model, x = block(), torch.randn(4, 128)
    group_(model, x)
    model(x).sum().backward()
    assert not launches and all(layer.weight_values.grad is not None for layer in (model.q, model.k, model.v))
    with torch.no_grad():
        expected = model(x)
        assert len(launches) == 1
        model(torch.randn(65, 128))  # more tokens than one launch takes
        model.half()(x.half())
        model.float()
        assert len(launches) == 2
        gs.densify_(model.k)
        torch.testing.assert_close(model(x), expected, rtol=1e-2, atol=1e-2)
        assert len(launches) == 2 and "_together" not in model.k.__dict__


def test_who_joins():
    x = torch.randn(3, 128)
    assert group_(block(bias=True), x) == []
    assert group_(block(rows=(256, 64, 128)), x) == [("q", "v")]  # 64 rows are no multiple of 128
    assert group_(gs.sparsify_(Block(), "2:4"), x) == []  # masked
    mixed = block()
    mixed.k.bfloat16()
    mixed.forward = lambda x: (mixed.q(x), mixed.v(x))
    assert group_(mixed, x) == [("q", "v")]
    four = block()
    four.o = gs.sparsify_(nn.Linear(128, 128, bias=False), "2:4", format=PackedVNM("all", 2, 4))
    four.forward = lambda x: (four.q(x), four.k(x), four.v(x), four.o(x))
    assert group_(four, x) == [("q", "k", "v")]


def test_others_see_layers(launches, tmp_path):
    model, x = block(), torch.randn(3, 128)
    state, text = model.state_dict(), repr(model)
    group_(model, x)
    assert repr(model) == text and all(torch.equal(model.state_dict()[name], state[name]) for name in state)
    gs.save(model, tmp_path / "model.safetensors")
    with torch.no_grad():
        expected = model(x)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(other(x), expected)
        torch.testing.assert_close(gs.load(Block(), tmp_path / "model.safetensors")(x), expected)
    other = copy.deepcopy(model)
    assert other.q.__dict__["_together"][0].layers == (other.q, other.k, other.v)
    with torch.no_grad():
        model.k.weight_values.zero_()
        assert not model(x)[:, 256:384].any()  # the launch reads the parameters that are there now


def test_a_trace_has_one_operator(monkeypatch):
    model, x = block(), torch.randn(3, 128)
    group_(model, x)
    monkeypatch.setattr(together, "_on_gpu", lambda x: True)
    monkeypatch.setattr(together, "_most_tokens", lambda rows, device: 64)
    seen = []

    def backend(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    with torch.no_grad():
        expected = block()(x)
        out = torch.compile(model, fullgraph=True, backend=backend)(x)
    torch.testing.assert_close(out, expected)
    assert seen.count("gossamer.vnm_group.default") == 1 and "gossamer.vnm_linear.default" not in seen


def test_pack_groups_only_what_it_packed_for_that():
    model = block()
    gs.pack_(model, torch.randn(4, 128), quiet=True)  # on a CPU other formats are faster
    assert "_together" not in model.q.__dict__
