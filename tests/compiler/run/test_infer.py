"""The form of a result: hand-checked cases, and formats for results with far more rows than entries."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import parse
from gossamer.compiler.run.infer import infer
from gossamer.core.join import from_entries

N = 5_000_000_000


def wide(format=None):
    """3 rows of five billion columns, five entries."""
    keys = torch.tensor([5, N - 1, N + 7, 2 * N + 5, 2 * N + N // 2])
    return from_entries(keys, torch.arange(1.0, 6.0, dtype=torch.float64), (3, N), format or gs.CSR())


SMALL = torch.tensor([[1.0, 0, 2, 0], [0, 0, 3, 0], [0, 4, 0, 0]], dtype=torch.float64)


def form(expression, *tensors):
    return infer(parse(expression, [t.dim() for t in tensors]), [getattr(t, "structure", None) for t in tensors])


def test_hand_checked_forms():
    a = gs.from_dense(SMALL, gs.CSR())
    assert form("ij,ij->ij", a, SMALL) == 0  # the entries of the first operand
    assert form("ij,jk->ik", a, SMALL.t()) == gs.Dense()
    assert form("ij,kj->ik", a, gs.from_dense(SMALL, gs.CSC())) == gs.CSR()
    assert form("ij->i", a) == gs.Dense()
    assert form("ij,kl->ijkl", a, a) == gs.CSF()


def test_a_product_of_two_patterns_has_neither():
    a, b = gs.from_dense(SMALL, gs.CSR()), gs.from_dense(SMALL.flip(0), gs.CSR())
    assert form("ij,ij->ij", a, b) == gs.CSR()  # a format: the entries that both have
    assert form("ij,ij->ij", a, a) == 0  # one pattern
    assert form("ij,ij,ij->ij", SMALL, a, b) == gs.CSR() and form("ij,ij,ij->ij", SMALL, a, a) == 1


def test_a_result_with_far_more_rows_than_entries_is_dcsr():
    a, b = wide(), gs.from_dense(SMALL, gs.CSR())
    got = gs.einsum("ki,kj->ij", a, b)
    assert got.format == gs.DCSR() and got.shape == (N, 4) and got.structure.nbytes() < 1000
    got.structure.check(got.values())
    rows = got.structure.entries().keys // 4
    assert rows.tolist() == [5, 5, 5, 7, N // 2, N - 1, N - 1]
    assert got.values().tolist() == [1, 16, 2, 9, 20, 2, 4]


def test_gradients_of_such_a_result():
    a = wide().requires_grad_()
    gs.einsum("ki,kj->ij", a, gs.from_dense(SMALL, gs.CSR())).values().sum().backward()
    assert a.grad.values().tolist() == [3, 3, 3, 4, 4]  # sums of the rows of the other operand


@pytest.mark.parametrize("expression, format", [("ki,kj->ji", gs.CSR()), ("ki,kj->ij", gs.DCSR())])
def test_only_levels_with_far_more_positions_are_compressed(expression, format):
    assert form(expression, wide(), gs.from_dense(SMALL, gs.CSR())) == format


def test_few_rows_and_rows_that_can_be_filled_are_dense():
    a = gs.from_dense(torch.eye(3), gs.CSR())
    assert form("ki,kj->ij", a, a) == gs.CSR()
    tall = from_entries(torch.arange(0, 4_000_000, 2), torch.ones(2_000_000), (2_000_000, 2), gs.CSR())
    assert form("ik,kj->ij", tall, gs.from_dense(torch.eye(2), gs.CSR())) == gs.CSR()


def test_a_result_is_not_given_a_format_that_holds_only_some_patterns():
    """One entry in each row of the operand; those of its transpose are others."""
    one_each = gs.from_dense(torch.tensor([[0.0, 2.0], [0.0, 3.0]]), gs.Format("dense", "singleton"))
    assert form("ij->ji", one_each) == gs.CSR()
    assert gs.einsum("ij->ji", one_each).to_dense().tolist() == [[0.0, 0.0], [2.0, 3.0]]
