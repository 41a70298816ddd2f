"""Masked by hand, and Dense, which is no sparse tensor."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

import gossamer as gs
from tests.formats import _draw

X = torch.tensor([[0.0, 1.0], [2.0, 0.0]])


def test_by_hand() -> None:
    t = gs.from_dense(X, gs.Masked())
    assert t.structure.arrays["mask1"].tolist() == [False, True, True, False]
    assert torch.equal(t.values(), X) and t.structure.plain and t.nnz == 2
    assert t.structure.valid().tolist() == [[False, True], [True, False]]


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4), (1, 1, 0, 2)])
def test_values_have_the_shape_of_the_tensor(shape: tuple[int, ...]) -> None:
    t = gs.from_dense(torch.ones(shape), gs.Masked())
    assert t.values().shape == (shape or (1,)) and torch.equal(t.to_dense(), torch.ones(shape))


def test_a_mask_may_have_the_shape_of_the_values() -> None:
    mask = X != 0
    t = gs.SparseTensor.from_arrays(gs.Masked(), (2, 2), X, {"mask1": mask})
    assert torch.equal(t.to_dense(), X) and t.structure.valid().shape == (2, 2)
    with pytest.raises(ValueError, match=r"mask has 2 dimensions, must have 1"):
        gs.SparseTensor.from_arrays(gs.Masked(), (2, 2), X, {"mask1": mask.view(1, 4)})


def test_a_value_outside_the_mask_is_refused() -> None:
    for value in (1.0, float("nan")):
        with pytest.raises(ValueError, match=r"Masked\(\).*a value outside the pattern is not zero"):
            gs.SparseTensor.from_arrays(gs.Masked(), (1,), torch.tensor([value]), {"mask0": torch.tensor([False])})


@given(_draw.dense((1, 3)))
def test_transposed_and_saved(x: torch.Tensor) -> None:
    t = gs.from_dense(x, gs.Masked()).permute(*range(x.dim() - 1, -1, -1))
    build, args = t.__reduce_ex__(2)[:2]
    assert torch.equal(build(*args).to_dense(), x.permute(*range(x.dim() - 1, -1, -1)))


def test_dense_is_a_plain_tensor() -> None:
    assert gs.from_dense(X, gs.Dense()) is X
    assert type(gs.from_dense(X, gs.CSR()).to_format(gs.Dense())) is torch.Tensor
    with pytest.raises(ValueError, match=r"plain torch.Tensor"):
        gs.SparseTensor.from_arrays(gs.Dense(), (2, 2), X, {})
