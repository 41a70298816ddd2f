from __future__ import annotations

import pytest
import torch

from gossamer.patterns import Threshold


def test_threshold_is_strict() -> None:
    scores = torch.tensor([0.0, -0.0, 1e-30, 0.5, -1.0])
    assert Threshold(0.0).select(scores).tolist() == [False, False, True, True, False]
    assert Threshold(0.5).select(scores).tolist() == [False] * 5
    assert Threshold(-2).select(scores).all()


def test_errors() -> None:
    with pytest.raises(ValueError, match="finite"):
        Threshold(float("inf"))
    with pytest.raises(TypeError, match="number"):
        Threshold("a lot")  # type: ignore[arg-type]
