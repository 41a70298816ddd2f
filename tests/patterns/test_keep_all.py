from __future__ import annotations

import torch

from gossamer.patterns import KeepAll


def test_keeps_everything_even_nan() -> None:
    scores = torch.tensor([[torch.nan, 0.0, -torch.inf], [1.0, -1.0, torch.inf]])
    assert KeepAll().select(scores).all()
    assert KeepAll().sparsity_of((2, 3)) == 0
