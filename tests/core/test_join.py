"""How a SparseTensor and its values meet autograd."""

import pytest
import torch

import gossamer as gs
from gossamer.core.join import (
    WantsDenseGradient,
    build,
    entries_of,
    from_entries,
    gather,
    tracked,
    values_of,
    wants_dense_gradient,
)


def matrix(format=None):
    return gs.from_dense(torch.tensor([[0.0, 3.0, 0.0], [4.0, 0.0, 5.0]]), format or gs.CSR())


def test_values_come_out_with_a_gradient_of_the_same_pattern():
    t = matrix().requires_grad_()
    (values_of(t) * torch.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert isinstance(t.grad, gs.SparseTensor) and t.grad.structure.same(t.structure)
    assert t.grad.to_dense().tolist() == [[0, 1, 0], [10, 0, 100]]


def test_values_go_in_with_the_gradient_at_their_places():
    values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    t = build(values, matrix().structure)
    assert t.to_dense().tolist() == [[0, 1, 0], [2, 0, 3]]
    (t.to_dense() * torch.arange(6.0).view(2, 3)).sum().backward()
    assert values.grad.tolist() == [1, 3, 5]


@pytest.mark.parametrize("format", [gs.CSR(), gs.COO(), gs.ELL(), gs.BSR((1, 2)), gs.Masked()])
def test_any_tensor_is_read_at_the_stored_positions(format):
    t, dense = matrix(format), torch.arange(1.0, 7.0).view(2, 3)
    assert torch.equal(build(gather(dense, t.structure), t.structure).to_dense(), dense * t.mask())
    other = gs.from_dense(torch.tensor([[7.0, 8.0, 0.0], [0.0, 0.0, 9.0]]), gs.COO())
    read = build(gather(other, t.structure), t.structure).to_dense()
    assert torch.equal(read, other.to_dense() * t.mask())  # 3 is stored here and not there: a zero
    empty = gs.from_dense(torch.zeros(2, 3), gs.COO())
    assert not gather(empty, t.structure).any()


def test_a_key_between_two_entries_is_not_one_of_them():
    low = gs.from_dense(torch.tensor([[1.0, 0.0, 2.0]]), gs.CSR())
    middle = gs.from_dense(torch.tensor([[0.0, 5.0, 0.0]]), gs.CSR())
    assert gather(low, middle.structure).tolist() == [0.0]


def test_entries_in_any_order_are_sorted_and_summed():
    keys, values = torch.tensor([5, 1, 5, 0]), torch.tensor([1.0, 2.0, 4.0, 8.0])
    t = from_entries(keys, values, (2, 3), gs.CSR())
    assert t.to_dense().tolist() == [[8, 2, 0], [0, 0, 5]]
    found, stored = entries_of(t)
    assert found.tolist() == [0, 1, 5] and stored.tolist() == [8, 2, 5]
    assert from_entries(keys[1:2], values[1:2], (2, 3), gs.Dense()).tolist() == [[0, 2, 0], [0, 0, 0]]


def test_a_gradient_that_is_wanted_everywhere_is_not_read_at_some_places():
    t = matrix().requires_grad_()
    assert tracked(t) and not wants_dense_gradient(t) and not wants_dense_gradient(torch.ones(1))
    t.grad_format = gs.Dense()
    assert wants_dense_gradient(t)
    with pytest.raises(WantsDenseGradient, match="every position"):
        values_of(t)
    with torch.no_grad():
        assert not tracked(t) and values_of(t).tolist() == [3, 4, 5]


def test_a_key_after_the_last_entry_is_not_the_last_entry():
    low = gs.from_dense(torch.tensor([[1.0, 2.0, 0.0]]), gs.CSR())
    last = gs.from_dense(torch.tensor([[0.0, 0.0, 5.0]]), gs.CSR())
    assert gather(low, last.structure).tolist() == [0.0]
