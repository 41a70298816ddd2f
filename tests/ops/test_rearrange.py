"""Entries that move: the result is sparse."""

import pytest
import torch

import gossamer as gs
from gossamer.core.tensor import SparseTensor
from tests.formats_under_test import ALL
from tests.ops.against_dense import check, check_refused, sample

formats = pytest.mark.parametrize("format", ALL, ids=repr)

CALLS = {
    "flip": lambda t: t.flip(0, 2),
    "roll": lambda t: t.roll((1, -2), (0, 2)),
    "tril": lambda t: t.tril(1),
    "triu": lambda t: t.triu(),
    "diagonal": lambda t: t.diagonal(1, 1, 2),
    "pad": lambda t: torch.nn.functional.pad(t, (1, 0, 2, 3)),
    "fliplr": lambda t: t.fliplr(),
}
#: Calls that a guard refuses, and words of its reason.
REFUSED = {
    "flip twice": (lambda t: t.flip(0, 0), "named twice"),
    "roll with too few dims": (lambda t: t.roll((1, 2), 0), "as many shifts"),
    "pad with ones": (lambda t: torch.nn.functional.pad(t, (1, 1), value=1.0), "other than zeros"),
    "pad that cuts": (lambda t: torch.nn.functional.pad(t, (-1, 1)), "cut off"),
    "diagonal of one dimension": (lambda t: t.diagonal(0, 1, 1), "not two"),
    "diag of three dimensions": (lambda t: torch.diag(t), "neither a vector"),
    "trace of three dimensions": (lambda t: torch.trace(t), "not a matrix"),
    "tril of a vector": (lambda t: t[0, 0].tril(), "fewer than two"),
    "fliplr of a vector": (lambda t: t[0, 0].fliplr(), "too few dimensions"),
}


@formats
@pytest.mark.parametrize("name", CALLS)
def test_three_dimensions(format, name):
    assert isinstance(check(CALLS[name], sample((3, 4, 5), format)), SparseTensor)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_guard_refuses_is_torchs_with_the_reason(name):
    check_refused(*REFUSED[name], sample((3, 4, 5), gs.CSR()))


@formats
def test_a_copy_shares_nothing(format):
    t = sample((3, 4), format)
    for f in (torch.t_copy, torch.alias_copy, lambda t: torch.view_copy(t, (4, 3))):
        before = t.to_dense()
        f(t).mul_(2)
        assert torch.equal(t.to_dense(), before)
