from __future__ import annotations

import math

import pytest
import torch

from gossamer.scores import HardConcrete


def test_hard_concrete_penalty_is_the_share_of_open_gates() -> None:
    hc = HardConcrete()
    for alpha in (-2.0, 0.0, 1.0):
        log_alpha = torch.full((20000,), alpha, dtype=torch.float64)
        open_ = (hc.sample(log_alpha, seed=5) > 0).double().mean()
        assert float(open_) == pytest.approx(float(hc.penalty(log_alpha)) / 20000, abs=0.012)
    assert float(hc.penalty(torch.zeros(1))) == pytest.approx(1 / (1 + math.exp(2 / 3 * math.log(0.1 / 1.1))), rel=1e-6)


def test_hard_concrete_learns() -> None:
    log_alpha = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    hc = HardConcrete()
    (hc.sample(log_alpha, seed=1).sum() + hc.penalty(log_alpha) + hc.gate(log_alpha).sum()).backward()
    assert log_alpha.grad is not None and bool((log_alpha.grad > 0).any())
    fresh = log_alpha.detach().requires_grad_()
    assert torch.autograd.gradcheck(hc.penalty, (fresh,)) and torch.autograd.gradcheck(hc.gate, (fresh,))


def test_hard_concrete_sampling_is_reproducible() -> None:
    hc, log_alpha = HardConcrete(), torch.zeros(8)
    assert torch.equal(hc.sample(log_alpha, seed=2), hc.sample(log_alpha, seed=2))
    one, two = (hc.sample(log_alpha, generator=torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(one, two)
    assert hc.sample(log_alpha.half()).isfinite().all()
    with pytest.raises(ValueError, match="not both"):
        hc.sample(log_alpha, seed=1, generator=torch.Generator())
    with pytest.raises(ValueError, match="gamma < 0"):
        HardConcrete(gamma=0.1)
