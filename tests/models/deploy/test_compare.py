"""The relative error of results of any structure."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.models.deploy.compare import difference


def test_by_hand() -> None:
    assert difference([torch.tensor([3.0, 5.0])], [torch.tensor([3.0, 4.0])]) == 0.2
    assert difference((), ()) == 0
    assert difference({"a": None}, {"a": None}) == 0


def test_what_is_never_near() -> None:
    one, nan = torch.ones(2), torch.tensor([1.0, float("nan")])
    wrong: list[tuple[Tensor, Tensor]] = [
        (one, torch.ones(3)),
        (one, one.double()),
        (torch.tensor([1]), torch.tensor([2])),
        (one, nan),
        (nan, one),
        (torch.tensor([float("inf")]), torch.tensor([-float("inf")])),
    ]
    assert all(difference(a, b) == float("inf") for a, b in wrong)
    assert difference([one], (one,)) == float("inf")
    assert difference(nan, nan) == 0
    assert difference(torch.zeros(2), torch.zeros(2)) == 0
