"""Values at new places, and gradients at the old ones."""

import pytest
import torch

from gossamer.compiler.convert.moves import moved
from gossamer.compiler.run.runtime import available

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")
TYPES = [torch.int8, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_by_hand(dtype, index):
    x = torch.tensor([1, 2, 3, 4]).to(dtype)
    where, place = torch.tensor([3, 0, 2], dtype=index), torch.tensor([4, 1, 0], dtype=index)
    assert moved(x, where, None, 3, 3).tolist() == [4, 1, 3]
    assert moved(x, None, place, 3, 5).tolist() == [3, 2, 0, 0, 1]
    assert moved(x, where, place, 3, 5).tolist() == [3, 1, 0, 0, 4]
    assert moved(x, None, None, 4, 6).tolist() == [1, 2, 3, 4, 0, 0]
    assert moved(x[:0], None, None, 0, 2).tolist() == [0, 0]
    assert moved(x[::2], None, None, 2, 2).tolist() == [1, 3]  # not contiguous


def test_gradients_of_gradients():
    x = torch.rand(4, dtype=torch.float64, requires_grad=True)
    where, place = torch.tensor([3, 0]), torch.tensor([2, 0])
    assert torch.autograd.gradcheck(lambda v: moved(v, where, place, 2, 3), x)
    assert torch.autograd.gradgradcheck(lambda v: moved(v, where, place, 2, 3).square(), x)
