from __future__ import annotations

import torch

from gossamer.scores import Wanda


def test_wanda_of_a_convolution() -> None:
    weight, norms = torch.randn(4, 3, 2, 2), torch.rand(3)
    by_channel = Wanda()(weight, inputs=norms)
    assert torch.allclose(by_channel, weight.abs() * norms.view(3, 1, 1))
    assert torch.allclose(Wanda()(weight, inputs=norms.repeat_interleave(4)), by_channel)
    tokens = torch.randn(2, 5, 3)
    assert torch.allclose(Wanda()(weight, inputs=tokens), Wanda()(weight, inputs=tokens.flatten(0, 1)))
