"""Any optimizer, any format: the weight keeps its format and pattern, and equals masked dense training."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from tests.formats_under_test import ALL

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, amsgrad=True),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=0.05, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=0.05, fused=True),
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.05),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.05),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.05),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.05),
}


@pytest.mark.parametrize("format", ALL, ids=repr)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_masked_dense_training(name, format):
    start = torch.randn(6, 9, dtype=torch.float64)
    sparse = nn.Parameter(gs.sparsify(start, "70%", format))
    mask = sparse.mask()
    dense = nn.Parameter(sparse.detach().to_dense())
    optimizers = OPTIMIZERS[name]([sparse]), OPTIMIZERS[name]([dense])
    with gs.fallback("error"):
        for _ in range(4):
            x = torch.randn(5, 9, dtype=torch.float64)
            for weight, optimizer in zip((sparse, dense), optimizers, strict=True):
                optimizer.zero_grad()
                F.linear(x, weight).square().mean().backward()
                if weight is dense:
                    weight.grad.mul_(mask)
                optimizer.step()
            with torch.no_grad():
                dense.mul_(mask)
    assert sparse.format == format
    assert torch.equal(sparse.mask(), mask)
    torch.testing.assert_close(sparse.detach().to_dense(), dense.detach())


def test_clipping_and_gradient_norms():
    sparse = nn.Parameter(gs.sparsify(torch.randn(6, 9), "70%"))
    dense = nn.Parameter(sparse.detach().to_dense())
    x = torch.randn(5, 9)
    for weight in (sparse, dense):
        F.linear(x, weight).square().sum().backward()
    dense.grad.mul_(sparse.mask())
    for foreach in (False, True):
        norms = [nn.utils.clip_grad_norm_([w], 0.5, foreach=foreach) for w in (sparse, dense)]
        torch.testing.assert_close(norms[0], norms[1])
    nn.utils.clip_grad_value_([sparse], 0.01)
    torch.testing.assert_close(sparse.grad.to_dense(), dense.grad.clamp(-0.01, 0.01))


def test_gradient_scaler_of_mixed_precision():
    sparse = nn.Parameter(gs.sparsify(torch.randn(6, 9), "70%"))
    optimizer, scaler = torch.optim.SGD([sparse], lr=0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
    before = sparse.detach().to_dense().clone()
    x = torch.randn(5, 9)
    scaler.scale(F.linear(x, sparse).sum()).backward()
    scaler.step(optimizer)
    expected = before - 0.1 * (torch.ones(6, 5) @ x) * sparse.mask()
    torch.testing.assert_close(sparse.detach().to_dense(), expected)


def test_optimizer_checkpoints_resume_exactly():
    def run(steps, state=None):
        torch.manual_seed(1)
        model = gs.sparsify_(nn.Linear(9, 6), "70%", format=gs.CSR())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        if state is not None:
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        for step in steps:
            optimizer.zero_grad()
            model(torch.full((2, 9), float(step))).square().sum().backward()
            optimizer.step()
        return model, (model.state_dict(), optimizer.state_dict())

    straight, _ = run(range(1, 5))
    resumed, _ = run(range(3, 5), run(range(1, 3))[1])
    assert torch.equal(straight.weight.to_dense(), resumed.weight.to_dense())
