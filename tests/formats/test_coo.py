"""COO by hand, and its matrix view for any number of dimensions."""

from __future__ import annotations

import pytest
import torch

import gossamer as gs

X = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 4.0]])


def test_by_hand() -> None:
    t = gs.from_dense(X, gs.COO())
    arrays = {name: array.tolist() for name, array in t.structure.arrays.items()}
    assert arrays == {"pos0": [0, 4], "crd0": [0, 0, 2, 2], "crd1": [1, 3, 0, 3]}
    view = t.structure.matrix()
    assert view.pos.tolist() == [0, 2, 2, 4] and view.crd is t.structure.arrays["crd1"] and view.index is None


@pytest.mark.parametrize(
    ("shape", "pos", "crd"),
    [((4,), [0, 2], [1, 3]), ((), [0, 1], [0]), ((2, 1, 2), [0, 1, 2], [1, 1]), ((2, 2, 1, 1), [0, 1, 2], [1, 1])],
)
def test_matrix_view_of_other_dimensions(shape: tuple[int, ...], pos: list, crd: list) -> None:
    x = torch.tensor([0.0, 1.0, 0.0, 2.0]).view(shape) if shape else torch.tensor(5.0)
    view = gs.from_dense(x, gs.COO()).structure.matrix()
    assert view.pos.tolist() == pos and view.crd.tolist() == crd


def test_a_list_out_of_order_is_refused() -> None:
    pos, one = torch.tensor([0, 2]), torch.tensor([0, 0])
    build = lambda crd1: gs.SparseTensor.from_arrays(
        gs.COO(), (1, 3), torch.ones(2), {"pos0": pos, "crd0": one, "crd1": torch.tensor(crd1)}
    )
    assert build([0, 2]).nnz == 2
    for wrong in ([2, 0], [1, 1]):
        with pytest.raises(ValueError, match=r"COO\(\) of shape \(1, 3\): entries are not in ascending order"):
            build(wrong)
