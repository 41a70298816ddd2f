"""Transposes and views: entries keep their values, and the result is sparse."""

import pytest
import torch

import gossamer as gs
from gossamer.core.tensor import SparseTensor
from tests.formats_under_test import ALL
from tests.ops.against_dense import MATRICES, check, check_refused, sample

formats = pytest.mark.parametrize("format", ALL, ids=repr)

CALLS = {
    "permute": lambda t: t.permute(2, 0, 1),
    "transpose": lambda t: t.transpose(0, 2),
    "mT": lambda t: t.mT,
    "movedim": lambda t: t.movedim(0, -1),
    "reshape": lambda t: t.reshape(6, -1),
    "view": lambda t: t.view(2, 30),
    "flatten": lambda t: t.flatten(1),
    "unflatten": lambda t: t.unflatten(1, (2, 2)),
    "squeeze": lambda t: t[:, :1].squeeze(1),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "atleast_3d": lambda t: torch.atleast_3d(t[0]),
    "by keyword": lambda t: torch.permute(t, dims=(1, 2, 0)).reshape(shape=(4, 15)),
}
#: Calls that a guard refuses, and words of its reason.
REFUSED = {
    "twice the same dimension": (lambda t: t.permute(0, 0, 1), "named once"),
    "sizes that do not fit": (lambda t: t.reshape(7, -1), "don't fit"),
    "a view of another type": (lambda t: t.view(torch.int64), "another type"),
    "t of three dimensions": (lambda t: t.t(), "more than two"),
    "mT of a vector": (lambda t: t[0, 0].mT, "fewer than two"),
    "flatten backwards": (lambda t: t.flatten(2, 1), "comes after"),
    "unflatten into nothing": (lambda t: t.unflatten(1, (3, 2)), "don't fit"),
    "view_as another size": (lambda t: t.view_as(torch.ones(7)), "don't fit"),
    "movedim twice": (lambda t: t.movedim((0, 0), (1, 2)), "named twice"),
}


@formats
@pytest.mark.parametrize("name", CALLS)
def test_three_dimensions(format, name):
    assert isinstance(check(CALLS[name], sample((3, 4, 5), format)), SparseTensor)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_guard_refuses_is_torchs_with_the_reason(name):
    check_refused(*REFUSED[name], sample((3, 4, 5), gs.CSR()))


@formats
@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_matrices_of_every_size(format, shape):
    t = sample(shape, format)
    for f in (torch.t, torch.flatten, lambda t: t[:, :1], lambda t: t[..., None], lambda t: torch.cat([t, t])):
        assert isinstance(check(f, t), SparseTensor)


@formats
def test_by_hand(format):
    t = gs.from_dense(torch.tensor([[0.0, 3.0], [4.0, 0.0], [0.0, 5.0]]), format)
    assert t.t().to_dense().tolist() == [[0.0, 4.0, 0.0], [3.0, 0.0, 5.0]]
    assert t[1].to_dense().tolist() == [4.0, 0.0]
    assert t[2, 1].item() == 5
    assert t.reshape(2, 3).to_dense().tolist() == [[0.0, 3.0, 4.0], [0.0, 0.0, 5.0]]
    assert torch.cat([t, t[:1]]).to_dense().tolist() == [[0.0, 3.0], [4.0, 0.0], [0.0, 5.0], [0.0, 3.0]]
    assert t.roll(1, 0).to_dense().tolist() == [[0.0, 5.0], [0.0, 3.0], [4.0, 0.0]]
    assert torch.diag(t[:2]).to_dense().tolist() == [0.0, 0.0]
    assert torch.trace(t[:2].flip(0)) == 7


def test_a_transpose_of_compressed_rows_moves_nothing():
    t = gs.from_dense(torch.randn(4, 6).relu(), gs.CSR())
    assert t.t().format == gs.CSC()
    assert t.t().values().data_ptr() == t.values().data_ptr()


@formats
def test_shape_can_change_in_place(format):
    t = sample((3, 5), format)
    dense = t.to_dense()
    for f in (lambda x: x.t_(), lambda x: x.unsqueeze_(1), lambda x: x.squeeze_(1), lambda x: x.transpose_(0, 1)):
        assert f(t) is t
        f(dense)
        assert t.shape == dense.shape
        assert t.format == format
        torch.testing.assert_close(t.to_dense(), dense)


@formats
def test_a_shape_changed_in_place_has_a_gradient(format):
    t = sample((3, 5), format).requires_grad_()
    moved = t.clone()
    moved.t_()
    weight = torch.arange(15, dtype=torch.float64).view(5, 3)
    (moved.to_dense() * weight).sum().backward()
    torch.testing.assert_close(t.grad.to_dense(), weight.t() * t.mask())


@pytest.mark.parametrize(
    "f",
    [
        lambda t: t.reshape(5, 5),
        lambda t: t.permute(0, 0),
        lambda t: t[7],
        lambda t: t[0, 0, 0],
        lambda t: t.transpose(0, 2),
        lambda t: torch.cat([t, t[:, :2]]),
        lambda t: t.expand(3, 9),
        lambda t: t.narrow(0, 2, 5),
        lambda t: t.index_select(0, torch.tensor([5])),
        lambda t: t.split([1, 1]),
    ],
)
def test_errors_are_torchs_own(f):
    t = sample((3, 4), gs.CSR())
    with pytest.raises((RuntimeError, IndexError)) as expected:
        f(t.to_dense())
    with gs.fallback("silent"), pytest.raises(expected.type):
        f(t)
