"""Index arrays that are compared as bytes."""

import pytest
import torch

from gossamer.formats.equality import equal


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("size", [0, 1, 7, 1000])
def test_one_number_makes_the_difference(dtype, size):
    a = torch.randint(2, (size,)).to(dtype)
    assert equal(a, a) and equal(a, a.clone())
    for place in {0, size // 2, size - 1} if size else ():
        b = a.clone()
        b[place] = 1 - int(b[place])
        assert not equal(a, b)


def test_shapes_and_strides():
    a = torch.arange(12).reshape(3, 4)
    assert not equal(a, a.reshape(4, 3)) and not equal(a, a[:2])
    assert equal(a.t(), a.t().contiguous()) and not equal(a.t().reshape(3, 4), a)


def test_types_do_not_matter():
    assert equal(torch.arange(3), torch.arange(3, dtype=torch.int32)) == torch.equal(
        torch.arange(3), torch.arange(3, dtype=torch.int32)
    )
