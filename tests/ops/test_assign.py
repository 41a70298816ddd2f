"""t[...] = value: stored positions are written, others raise; the same in every format."""

import pytest
import torch

import gossamer as gs
from tests.formats_under_test import ALL

MATRICES = [f for f in ALL if f != gs.Format("dense", "dense", "compressed")]
every_format = pytest.mark.parametrize("format", MATRICES, ids=repr)
X = torch.tensor([[0.0, 2.0, 0.0, 4.0], [5.0, 0.0, 0.0, 0.0], [0.0, 7.0, 8.0, 9.0]])


@every_format
def test_by_hand(format):
    t = gs.from_dense(X, format)
    t[0, 1] = -1.0
    t[2] = torch.tensor([0.0, 1.0, 2.0, 3.0])
    t[-2, 0] = 0.5
    expected = torch.tensor([[0.0, -1.0, 0.0, 4.0], [0.5, 0.0, 0.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    assert torch.equal(t.to_dense(), expected)
    assert t.format == format


@every_format
def test_a_place_that_is_not_stored_raises_and_nothing_changes(format):
    t = gs.from_dense(X, format)
    row, column = (~t.mask()).nonzero()[0].tolist() if not bool(t.mask().all()) else (None, None)
    if row is None:
        pytest.skip("this format stores every place of so small a tensor")
    with pytest.raises(IndexError, match=r"writes stored positions only.*from_dense"):
        t[row, column] = 3.0
    with pytest.raises(IndexError, match="writes stored positions only"):
        t[row] = 1.0
    with gs.fallback("silent"), pytest.raises(IndexError, match="writes stored positions only"):
        t[~t.mask()] = 1.0  # on a dense copy
    assert torch.equal(t.to_dense(), X)


@every_format
@pytest.mark.parametrize("index", [(0, 0), 1, (slice(None), 2), slice(0, 3, 2), ..., (..., 1), (slice(1), slice(1, 4))])
def test_zeros_may_be_assigned_anywhere(format, index):
    t, x = gs.from_dense(X, format), X.clone()
    with gs.fallback("error"):
        t[index] = 0.0
    x[index] = 0.0
    assert torch.equal(t.to_dense(), x)


@every_format
def test_a_dense_value_is_read_where_something_is_stored(format):
    t = gs.from_dense(X, format)
    new = torch.where(X != 0, torch.arange(12.0).view(3, 4), 0.0)
    t[:, 1:] = new[:, 1:]
    assert torch.equal(t.to_dense()[:, 1:], new[:, 1:])
    t[...] = new
    assert torch.equal(t.to_dense(), new)


def test_nan_is_not_zero():
    t = gs.from_dense(X, gs.CSR())
    with pytest.raises(IndexError):
        t[0, 0] = float("nan")


def test_errors_are_torchs_own():
    t = gs.from_dense(X, gs.CSR())
    with gs.fallback("silent"), pytest.raises(IndexError, match=r"out of bounds|out of range"):
        t[5, 0] = 1.0
    with pytest.raises(RuntimeError):
        t[0] = torch.ones(3)


def test_where_a_gradient_is_recorded_it_is_done_on_a_dense_copy():
    p = torch.nn.Parameter(gs.from_dense(X, gs.CSR()))
    assert gs.explain(torch.Tensor.__setitem__, p, (0, 1), 1.0).how == "fallback"
    with torch.no_grad():
        assert gs.explain(torch.Tensor.__setitem__, p, (0, 1), 1.0).how == "native"
        p[0, 1] = 1.5
    assert float(p.detach().to_dense()[0, 1]) == 1.5
