"""Row-major numbers of positions, against torch's own."""

import pytest
import torch

from gossamer.formats.keys import ascending, ravel, unravel


@pytest.mark.parametrize("sizes", [(7,), (3, 5), (2, 1, 4), (2, 3, 4, 5)])
def test_there_and_back(sizes):
    dense = torch.arange(torch.Size(sizes).numel()).view(sizes)
    coords = list(torch.ones(sizes).nonzero(as_tuple=True))
    keys = ravel(coords, sizes)
    assert torch.equal(keys, dense.reshape(-1))
    for one, other in zip(unravel(keys, sizes), coords, strict=True):
        assert torch.equal(one, other)


def test_nothing():
    empty = torch.empty(0, dtype=torch.int64)
    assert [c.numel() for c in unravel(empty, (3, 0))] == [0, 0] and ravel([empty, empty], (3, 0)).numel() == 0


@pytest.mark.parametrize(
    ("keys", "expected"), [([], True), ([3], True), ([1, 2, 9], True), ([1, 1], False), ([2, 1], False)]
)
def test_ascending(keys, expected):
    assert ascending(torch.tensor(keys)) is expected
