"""Places of stored entries among all values of a fibre."""

import torch

import gossamer as gs
from gossamer.ops.fibres import Fibres

ROW = torch.tensor([[2.0, 0.0, -1.0, 0.0, 5.0]])  # ascending: -1, 0, 0, 2, 5


def test_places_by_hand():
    t = gs.from_dense(ROW, gs.CSR())
    assert Fibres(t, 1, descending=False).place.tolist() == [3, 0, 4]  # of 2, -1 and 5
    assert Fibres(t, 1, descending=True).place.tolist() == [1, 4, 0]


def test_zeros_between_them_by_hand():
    fibres = Fibres(gs.from_dense(ROW, gs.CSR()), 1, descending=False)
    one = torch.zeros(2, dtype=torch.int64)
    assert fibres.coordinates(one, torch.tensor([1, 2])).tolist() == [1, 3]
    values, indices = fibres.first(5, torch.tensor([0]))
    assert values.tolist() == [[-1.0, 0.0, 0.0, 2.0, 5.0]]
    assert indices.tolist() == [[2, 1, 3, 0, 4]]


def test_a_stored_zero_is_a_zero_among_others():
    t = gs.SparseTensor.from_arrays(
        gs.CSR(), (1, 4), torch.tensor([0.0, 7.0]), {"pos1": torch.tensor([0, 2]), "crd1": torch.tensor([2, 3])}
    )
    fibres = Fibres(t, 1, descending=True)  # 7, then the zeros of columns 0, 1 and 2
    assert fibres.place.tolist() == [3, 0]
    assert fibres.first(4, torch.tensor([0]))[1].tolist() == [[3, 0, 1, 2]]


def test_fibres_without_entries():
    fibres = Fibres(gs.from_dense(torch.zeros(2, 3), gs.COO()), 1, descending=True)
    values, indices = fibres.first(2, fibres.every())
    assert values.tolist() == [[0.0, 0.0]] * 2
    assert indices.tolist() == [[0, 1]] * 2


def test_columns_are_laid_out_as_the_tensor_is():
    dense = torch.tensor([[1.0, 0.0], [3.0, -2.0], [0.0, 4.0]])
    fibres = Fibres(gs.from_dense(dense, gs.CSC()), 0, descending=True)
    values, indices = (fibres.laid_out(rows) for rows in fibres.first(2, fibres.every()))
    assert values.tolist() == [[3.0, 4.0], [1.0, 0.0]]
    assert indices.tolist() == [[1, 2], [0, 0]]
