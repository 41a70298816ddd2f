"""Joining and repeating: the result is sparse."""

import pytest
import torch

import gossamer as gs
from gossamer.core.tensor import SparseTensor
from tests.formats_under_test import ALL
from tests.ops.against_dense import check, check_refused, sample

formats = pytest.mark.parametrize("format", ALL, ids=repr)

CALLS = {
    "cat": lambda t: torch.cat([t, t[:, :1]], 1),
    "stack": lambda t: torch.stack([t, t], 1),
    "hstack": lambda t: torch.hstack([t, t]),
    "vstack": lambda t: torch.vstack([t, t]),
    "column_stack": lambda t: torch.column_stack([t[0], t[1], t[0, :, 0]]),
    "repeat": lambda t: t.repeat(2, 1, 3),
    "tile": lambda t: t.tile(2),
    "expand": lambda t: t[:, :1].expand(-1, 4, -1),
    "expand by a dimension": lambda t: t.expand(2, 3, 4, 5),
}
#: Calls that a guard refuses, and words of its reason.
REFUSED = {
    "cat of other sizes": (lambda t: torch.cat([t, t[:, :2]]), "differ"),
    "stack of other shapes": (lambda t: torch.stack([t, t[:1]]), "differ"),
    "stack with a dense one": (lambda t: torch.stack([t, torch.zeros(3, 4, 5, dtype=torch.float64)]), "dense"),
    "hstack of other sizes": (lambda t: torch.hstack([t, t[:2]]), "differ"),
    "expand that does not fit": (lambda t: t.expand(3, 9, 5), "doesn't expand"),
    "broadcast_to -1": (lambda t: torch.broadcast_to(t, (-1, 4, 5)), "-1"),
    "repeat too few": (lambda t: t.repeat(2), "fewer counts"),
    "repeat less than nothing": (lambda t: t.repeat(1, 1, -1), "natural number"),
}


@formats
@pytest.mark.parametrize("name", CALLS)
def test_three_dimensions(format, name):
    assert isinstance(check(CALLS[name], sample((3, 4, 5), format)), SparseTensor)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_guard_refuses_is_torchs_with_the_reason(name):
    check_refused(*REFUSED[name], sample((3, 4, 5), gs.CSR()))
