"""gs.sparsify: what stays, in which format, and whose function does it."""

import sys

import pytest
import torch

import gossamer as gs
from gossamer.ops.sparsify import apply_mask, default_format

X = torch.tensor([[1.0, -4.0, 2.0, -3.0], [0.5, 0.0, -6.0, 5.0]])
KEPT = [[0.0, -4.0, 0.0, -3.0], [0.0, 0.0, -6.0, 5.0]]


@pytest.mark.parametrize("how", ["50%", "2:4", gs.NM(2, 4), gs.sparsifiers.ScalarFraction(0.5)], ids=str)
def test_by_hand(how):
    out = gs.sparsify(X, how)
    assert out.format == gs.CSR() and out.to_dense().tolist() == KEPT


def test_the_format_that_suits_a_pattern():
    assert default_format(gs.Blocks(0.5, (2, 2)), X) == gs.BSR((2, 2))
    assert default_format(gs.NM(2, 4), X) == gs.CSR() and default_format(gs.NM(2, 4), X[0]) == gs.COO()
    assert gs.sparsify(X, gs.Blocks(0.5, (2, 2))).format == gs.BSR((2, 2))
    assert gs.sparsify(X[0], "50%").format == gs.COO()


def test_dense_is_a_plain_tensor_and_differentiable():
    x = X.clone().requires_grad_()
    out = gs.sparsify(x, "50%", format=gs.Dense())
    assert type(out) is torch.Tensor and out.tolist() == KEPT
    (out * 2).sum().backward()
    assert x.grad.tolist() == (2 * (torch.tensor(KEPT) != 0)).tolist()


@pytest.mark.parametrize("format", [gs.CSR(), gs.Masked(), gs.ELL()], ids=repr)
def test_gradients_flow_to_what_stays(format):
    x = X.clone().requires_grad_()
    (gs.sparsify(x, "50%", format=format).to_dense() * 3).sum().backward()
    assert x.grad.tolist() == (3 * (torch.tensor(KEPT) != 0)).tolist()


def test_a_mask_keeps_zeros_too():
    mask = torch.tensor([[True, False, False, False], [False, True, False, False]])
    out = apply_mask(X, mask, gs.CSR())
    assert out.nnz == 2 and out.values().tolist() == [1.0, 0.0]
    assert torch.equal(apply_mask(X.t(), mask.t(), gs.CSR()).to_dense(), (X * mask).t())


def test_like_another_tensor():
    other = gs.from_dense(torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0]]), gs.COO())
    out = gs.sparsify(X, other)
    assert out.format == gs.COO() and out.structure is other.structure and out.values().tolist() == [-4.0, 0.0, 5.0]
    assert gs.sparsify(X, other, format=gs.CSR()).format == gs.CSR()
    with pytest.raises(ValueError, match=r"x has shape \(2, 2\), the tensor to follow has \(2, 4\)"):
        gs.sparsify(X[:, :2], other)


def test_what_the_score_needs_is_passed_on():
    out = gs.sparsify(torch.ones(4), gs.Sparsifier(gs.patterns.Unstructured(0.5), gs.scores.Gradient()),
                      grad=torch.tensor([1.0, 4.0, 2.0, 3.0]))  # fmt: skip
    assert out.mask().tolist() == [False, True, False, True]


def test_a_sparse_tensor_is_made_sparser():
    out = gs.sparsify(gs.sparsify(X, "50%"), "75%")
    assert out.to_dense().tolist() == [[0.0] * 4, [0.0, 0.0, -6.0, 5.0]]


def test_a_registered_way_is_used_for_its_formats_only(monkeypatch):
    monkeypatch.setattr(sys.modules["gossamer.ops.sparsify"], "_SPARSIFIERS", [])
    seen = []

    @gs.implements_sparsifier(gs.NM, gs.CSR, gs.COO)
    def own(sparsifier, x, out):
        seen.append((sparsifier.pattern, x.format, out))
        return x

    @gs.implements_sparsifier(gs.sparsifiers.ScalarFraction, gs.CSR, gs.Masked)
    def other(sparsifier, x, out):
        return "later and more"

    x = gs.from_dense(X, gs.CSR())
    assert gs.sparsify(x, "2:4", format=gs.COO()) is x and seen == [(gs.NM(2, 4), gs.CSR(), gs.COO())]
    for args in ((x, "2:4", gs.CSR()), (X, "2:4", gs.COO()), (x, "50%", gs.COO())):
        assert gs.sparsify(*args).to_dense().tolist() == KEPT
    assert gs.sparsify(x, gs.sparsifiers.ScalarFraction(0.5), format=gs.Masked()) == "later and more" and len(seen) == 1


def test_a_tensor_of_torch_sparse_is_refused():
    with pytest.raises(TypeError, match=r"a dense tensor, not torch\.sparse_csr: use gs\.from_torch"):
        gs.sparsify(torch.eye(4).to_sparse_csr(), "50%")


def test_what_is_refused():
    with pytest.raises(TypeError, match=r"sparsify needs a torch.Tensor, not list"):
        gs.sparsify([1.0], "50%")
    with pytest.raises(TypeError, match=r"needs a float tensor, not torch.int64: cast it, or use gs.from_dense"):
        gs.sparsify(torch.ones(2, dtype=torch.int64), "50%")
