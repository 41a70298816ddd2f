"""Shape and type of any tensor, without a torch function."""

import pytest
import torch

import gossamer as gs
from gossamer.core.fallback import watch
from gossamer.core.look import dtype_of, shape_of
from tests.formats_under_test import ALL


@pytest.mark.parametrize("format", ALL, ids=repr)
def test_of_a_sparse_tensor_it_is_that_of_the_dense_one(format):
    t = gs.from_dense(torch.eye(4, 6, dtype=torch.float64), format)
    assert shape_of(t) == (4, 6) and type(shape_of(t)) is torch.Size
    assert dtype_of(t) is torch.float64


def test_of_an_ordinary_tensor_and_a_parameter():
    assert shape_of(torch.ones(0, 3)) == (0, 3) and dtype_of(torch.ones(1, dtype=torch.int8)) is torch.int8
    p = torch.nn.Parameter(gs.from_dense(torch.eye(3).half(), gs.CSR()))
    assert shape_of(p) == (3, 3) and dtype_of(p) is torch.float16


def test_no_torch_function_is_called():
    class Loud(gs.SparseTensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(f"{func} was called")

    t = gs.from_dense(torch.eye(2), gs.CSR())
    loud = Loud(t.values(), t.structure)
    with watch() as seen:
        assert shape_of(loud) == (2, 2) and dtype_of(loud) is torch.float32
    assert seen == []
