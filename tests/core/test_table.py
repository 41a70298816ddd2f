"""The table of operators: names, specificity, misses, and functions of one's own."""

import importlib

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.core import table as registry
from gossamer.core.table import Operator, operator_of


@pytest.fixture
def table():
    """The table, put back afterwards."""
    saved = {k: list(v) for k, v in registry._TABLE.items()}, {k: list(v) for k, v in registry._BACKWARD.items()}
    yield
    for now, before in zip((registry._TABLE, registry._BACKWARD), saved, strict=True):
        now.clear()
        now.update(before)
    registry.changed()


@pytest.mark.parametrize(
    ("func", "operator"),
    [
        (torch.add, Operator("add")),
        (torch.Tensor.add, Operator("add")),
        (torch.Tensor.__add__, Operator("add")),
        (torch.Tensor.__radd__, Operator("add", swapped=True)),
        (torch.Tensor.__iadd__, Operator("add", inplace=True)),
        (torch.Tensor.add_, Operator("add", inplace=True)),
        (torch.ops.aten.add.Tensor, Operator("add")),
        (torch.ops.aten.add_.Tensor, Operator("add", inplace=True)),
        (torch.Tensor.__truediv__, Operator("div")),
        (torch.Tensor.__rtruediv__, Operator("rdiv")),
        (torch.Tensor.__matmul__, Operator("matmul")),
        (torch.subtract, Operator("sub")),
        (torch.Tensor.T.__get__, Operator("T.get")),
        (torch.Tensor.__getitem__, Operator("__getitem__")),
        (F.linear, Operator("linear")),
        (F.relu_, Operator("relu", inplace=True)),
        (torch._foreach_add_, Operator("_foreach_add", inplace=True)),
    ],
)
def test_one_name_for_all_spellings(func, operator):
    assert operator_of(func) == operator


def test_the_most_specific_entry_wins_and_the_latest_among_equals(table):
    t = gs.from_dense(torch.eye(3), gs.CSR())
    gs.implements(torch.logdet, (gs.Format,))(lambda t: "any")
    assert torch.logdet(t) == "any"
    gs.implements(torch.logdet, (gs.CSR,))(lambda t: "csr")
    assert torch.logdet(t) == "csr"
    assert torch.logdet(t.to_format(gs.COO())) == "any"
    gs.implements(torch.logdet, (gs.CSR,))(lambda t: "newer")
    assert torch.logdet(t) == "newer"


def test_not_implemented_leaves_it_to_the_next(table):
    gs.implements(torch.logdet, (gs.Format,))(lambda t: "any")
    gs.implements(torch.logdet, (gs.CSR,))(lambda t: NotImplemented)
    assert torch.logdet(gs.from_dense(torch.eye(3), gs.CSR())) == "any"


def test_a_miss_converts_without_loss(table):
    gs.implements(torch.logdet, (gs.COO,))(lambda t: (t.format, t.nnz))
    assert torch.logdet(gs.from_dense(torch.eye(3), gs.CSC())) == (gs.COO(), 3)
    assert gs.explain(torch.logdet, gs.from_dense(torch.eye(3), gs.CSC())).how == "conversion"


def test_a_blocked_target_is_no_lossless_conversion(table):
    gs.implements(torch.logdet, (gs.BSR,))(lambda t: "blocks")
    with gs.fallback("silent"):
        assert float(torch.logdet(gs.from_dense(torch.eye(3), gs.CSR()))) == 0.0


def test_arguments_left_out_are_none(table):
    @gs.implements(F.linear, (gs.Dense, gs.CSR, gs.Dense))
    def linear_csr(x, weight, bias):
        return bias

    w = gs.from_dense(torch.eye(3), gs.CSR())
    assert F.linear(torch.ones(1, 3), w) is None
    assert F.linear(torch.ones(1, 3), w, None) is None


def test_sparse_keyword_arguments_are_seen():
    w, x = gs.from_dense(torch.eye(3), gs.CSR()), torch.randn(2, 3)
    torch.testing.assert_close(F.linear(input=x, weight=w, bias=torch.ones(3)), x + 1)
    torch.testing.assert_close(torch.add(x[:1].expand(3, 3), other=w), x[:1] + torch.eye(3))
    torch.testing.assert_close(torch.mm(input=w, mat2=torch.eye(3)), torch.eye(3))


def test_a_backward_of_one_s_own(table):
    gs.implements(torch.logdet, (gs.CSR,))(lambda t: t.to_dense().logdet())
    gs.implements_backward(torch.logdet, (gs.CSR,))(lambda grad, t: t.detach() * (10 * grad))
    p = torch.nn.Parameter(gs.from_dense(torch.eye(3) * 2, gs.CSR()))
    torch.logdet(p).backward()
    assert p.grad.values().tolist() == [20.0, 20.0, 20.0]


def test_sparsifiers_can_have_functions_of_their_own(monkeypatch):
    module = importlib.import_module("gossamer.ops.sparsify")
    monkeypatch.setattr(module, "_SPARSIFIERS", [])
    calls = []

    @gs.implements_sparsifier(gs.Threshold, gs.CSR, gs.CSR)
    def threshold_csr(sparsifier, x, out):
        calls.append(sparsifier.pattern.t)
        return x

    t = gs.from_dense(torch.eye(3), gs.CSR())
    assert gs.sparsify(t, gs.Threshold(0.5), gs.CSR()) is t
    assert calls == [0.5]


def test_formats_must_be_classes():
    with pytest.raises(TypeError, match="classes such as gs"):
        gs.implements(torch.logdet, (gs.CSR(),))
