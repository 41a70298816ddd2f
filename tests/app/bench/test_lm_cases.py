"""Cases say how the learning rate goes, and make their methods."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.app.bench.lm_cases import Case


def test_learning_rates() -> None:
    assert [Case("", rate="constant").schedule(300)(step) for step in (0, 299)] == [1.0, 1.0]
    cosine = Case("").schedule(300)
    assert cosine(0) < 0.2 and cosine(9) > 0.99 and cosine(150) == pytest.approx(0.5, abs=0.01) and cosine(299) < 1e-3


def test_shares_of_the_steps() -> None:
    model = nn.Linear(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = Case("", "GMP", "75%", {"start": 0.1, "until": 0.5}).made(model, optimizer, 200)
    assert isinstance(method, gs.train.GMP) and (method.start, method.until, method.every) == (20, 100, 13)
    assert Case("dense").made(model, optimizer, 200) is None
