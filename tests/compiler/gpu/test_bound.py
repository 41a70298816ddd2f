"""Arguments of kernels: what is written where, and how large integers are."""

import pytest
import torch

from gossamer.compiler import parse
from gossamer.compiler.gpu import bound
from gossamer.compiler.gpu.bound import Bound, Place
from gossamer.compiler.gpu.design import Design, NoKernelError
from tests.compiler.gpu.emulated import arg, sparse

SIZES = {"i": 5, "j": 100, "k": 32}


def spmm(expression="ij,jk->ik", x=None):
    args = [arg("ij", sparse(5, 100, density=0.1)), arg("jk", torch.ones(100, 32) if x is None else x)]
    return Bound(Design(parse(expression, (2, 2)), args, SIZES, "float", 4, "dense", 16), args, SIZES)


def test_places():
    place = Place((2, 3, 4), (0, 2, 1))
    assert place.stored == (2, 4, 3) and place.turned and not Place((2,), (0,)).turned
    x = torch.arange(24).view(2, 3, 4)
    assert torch.equal(x.permute(place.order).permute(place.back), x)


def test_steps_and_arguments():
    made = spmm()
    assert [step.slots > 0 for step in made.steps] == [True, False] and made.copies == {}
    first, second = made.steps
    assert (
        first.arguments[-1] == first.kernel.mapping.units * first.grid[0] or first.arguments[-1] <= 32 * first.grid[0]
    )
    assert len(first.arguments) == len(first.kernel.nest.arrays) + len(first.kernel.nest.sizes) + 1
    assert second.part is None and set(second.values) == {0, 1}


def test_the_lanes_share_what_is_contiguous():
    made = spmm("ij,jk->ki", torch.ones(32, 100).t())
    assert made.out.shape == (32, 5) and made.out.stored == (5, 32) and made.copies == {1: (0, 1)}


def test_large_integers_and_large_grids(monkeypatch):
    assert not spmm().long
    monkeypatch.setattr(bound, "_SHORT", 1000)
    assert spmm().long and "typedef long long idx;" in spmm().steps[0].kernel.source
    monkeypatch.setattr(bound, "fits", lambda grid: False)
    with pytest.raises(NoKernelError, match="blocks is more than a GPU takes"):
        spmm()
