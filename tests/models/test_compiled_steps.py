"""A whole training step under torch.compile: forward, backward and the optimizer."""

import copy

import pytest
import torch
from torch import nn

import gossamer as gs


def step_of(model, optimizer):
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    return step


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format", [gs.Masked(), gs.CSR()])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_step_is_an_eager_one(format, kind, backend):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).double()
    gs.sparsify_(model, "50%", format=format)
    other = copy.deepcopy(model)
    compiled = torch.compile(step_of(model, kind(model.parameters(), lr=0.01)), backend=backend)
    eager = step_of(other, kind(other.parameters(), lr=0.01))
    close = {"rtol": 1e-5, "atol": 1e-6}  # a compiled AdamW corrects its bias in float32, for dense models too
    for _ in range(4):
        x = torch.randn(2, 8).double()
        torch.testing.assert_close(compiled(x), eager(x), **close)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, **close)
    assert model[0].weight.nnz == 32
