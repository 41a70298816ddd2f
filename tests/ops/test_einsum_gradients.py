"""Gradients of gs.einsum: at the stored entries of a sparse operand, at every place of a dense one, twice if wanted."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import gossamer as gs
from gossamer.core.join import build


def tensor(shape, format, density=0.5):
    return gs.from_dense(torch.randn(shape, dtype=torch.float64) * (torch.rand(shape) < density), format)


def check(expression, *tensors, out=None, twice=True):
    structures = [t.structure if isinstance(t, gs.SparseTensor) else None for t in tensors]
    values = [(t.values() if isinstance(t, gs.SparseTensor) else t).clone().requires_grad_() for t in tensors]

    def function(*values):
        operands = [v if s is None else build(v, s) for v, s in zip(values, structures, strict=True)]
        result = gs.einsum(expression, *operands, out=out)
        return result.values() if isinstance(result, gs.SparseTensor) else result

    assert gradcheck(function, values)
    assert not twice or gradgradcheck(function, values)


def rand(*shape):
    return torch.randn(shape, dtype=torch.float64)


FORMATS = [gs.CSR(), gs.CSC(), gs.BSR((2, 2)), gs.Format("compressed", "dense")]


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_in_every_format(format):
    twice = format == gs.CSR()  # each gradient of a gradient is a kernel of its own
    with gs.dense_from(None):
        check("ik,kj->ij", tensor((4, 5), format), rand(5, 3), twice=twice)
        check("ik,kj->ij", tensor((4, 5), format), tensor((5, 3), format), twice=twice)
    check("ij,ik,jk->ij", tensor((4, 5), format), rand(4, 2), rand(5, 2), twice=twice)
    check("ij + ij -> ij", tensor((4, 5), format), tensor((4, 5), format), twice=twice)


@pytest.mark.parametrize(
    "expression, shapes",
    [
        ("ii->i", [(4, 4)]),
        ("ij->", [(4, 5)]),
        ("ij->ji", [(4, 5)]),
        ("mean: ij->i", [(4, 5)]),
        ("ij,ij->j", [(4, 5), (4, 5)]),
        ("square(ij) * 3 -> j", [(4, 5)]),
        ("ij - ij -> i", [(4, 5), (4, 5)]),
        ("tanh(ij) * ij -> ij", [(4, 5), (4, 5)]),
    ],
)
def test_expressions(expression, shapes):
    check(expression, *(tensor(shape, gs.CSR()) for shape in shapes), twice="tanh" in expression)


def test_three_dimensions_and_broadcasts():
    check("ikl,lj,kj->ij", tensor((3, 4, 2), gs.CSF()), rand(2, 3), rand(4, 3), twice=False)
    check("...ij,jk->...ik", tensor((2, 3, 4), gs.COO()), rand(4, 2), twice=False)
    check("ij,->ij", tensor((3, 4), gs.CSR()), rand(), twice=False)
    check("ij,kl->ik", tensor((3, 4), gs.CSR()), rand(2, 5), twice=False)  # j and l are summed alone
    check("ik,kj->ij", tensor((4, 1), gs.CSR()), tensor((3, 5), gs.CSR()), twice=False)  # k broadcasts


def test_a_sparse_operand_has_a_gradient_of_its_own_pattern():
    a = tensor((6, 7), gs.CSR(), 0.3).requires_grad_()
    x = rand(7, 4).requires_grad_()
    gs.einsum("ik,kj->ij", a, x).sum().backward()
    assert isinstance(a.grad, gs.SparseTensor) and a.grad.structure is a.structure
    full = torch.ones(6, 4, dtype=torch.float64) @ x.detach().T
    assert torch.allclose(a.grad.to_dense(), full * a.mask())
    assert torch.allclose(x.grad, a.detach().to_dense().T @ torch.ones(6, 4, dtype=torch.float64))


def test_a_gradient_may_be_wanted_at_every_position():
    a = tensor((6, 7), gs.CSR(), 0.3).requires_grad_()
    a.grad_format = gs.Dense()
    x = rand(7, 4)
    gs.einsum("ik,kj->ij", a, x).sum().backward()
    assert torch.allclose(a.grad, torch.ones(6, 4, dtype=torch.float64) @ x.T)


def test_maxima():
    a = tensor((4, 5), gs.CSR())
    with gs.fallback("silent"):
        check("max: ij->i", a, twice=False)


def test_training_reduces_a_loss():
    torch.manual_seed(0)
    w = torch.nn.Parameter(gs.sparsify(torch.randn(16, 32), "80%", format=gs.CSR()))
    target = torch.randn(16, 32) * w.mask()
    x = torch.randn(32, 64)
    optimizer = torch.optim.SGD([w], lr=2.0)
    losses = []
    for _ in range(40):
        loss = (gs.einsum("ik,kj->ij", w, x) - target @ x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
