"""Adafactor and LBFGS when weights become dense, sparse and stored in other ways between steps."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.models.own_state import factored, restart, unfactored

FORMATS = [gs.formats.Masked(), gs.CSR(), gs.BSR((4, 4)), gs.formats.PackedCSR()]


def test_factors_come_back():
    torch.manual_seed(0)
    rows, columns = torch.rand(3, 1), torch.rand(1, 4)
    columns *= rows.mean() / columns.mean()  # as both are of one array, their means are alike
    state = {"step": 3, "row_var": rows, "col_var": columns}
    unfactored(state)
    assert set(state) == {"step", "variance"}
    torch.testing.assert_close(state["variance"], rows @ columns / rows.mean())
    factored(state)
    assert set(state) == {"step", "row_var", "col_var"}
    torch.testing.assert_close(state["row_var"], rows)
    torch.testing.assert_close(state["col_var"], columns)


def test_what_has_no_factors_stays():
    for state in ({}, {"step": 1}, {"variance": torch.ones(3)}):
        before = dict(state)
        unfactored(state)
        factored(state)
        assert state == before
    zeros = {"row_var": torch.zeros(2, 1), "col_var": torch.zeros(1, 2)}
    unfactored(zeros)
    assert torch.equal(zeros["variance"], torch.zeros(2, 2))


def steps(model, optimizer, x, count=2):
    def closure():
        optimizer.zero_grad()
        loss = (model(x) - 1).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(count):
        optimizer.step(closure)


@pytest.mark.parametrize("make", [torch.optim.Adafactor, torch.optim.LBFGS], ids=lambda m: m.__name__)
@pytest.mark.parametrize("first", FORMATS, ids=str)
@pytest.mark.parametrize("second", FORMATS, ids=str)
def test_training_goes_on_through_every_change(make, first, second):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4)), torch.randn(32, 16)
    gs.sparsify_(model, gs.Blocks(0.5, (4, 4)), format=first, where="0")
    optimizer = make(model.parameters())
    steps(model, optimizer, x)
    gs.densify_(model)
    before = model[0].weight.detach().clone()
    steps(model, optimizer, x)
    assert torch.isfinite(model[0].weight).all() and (model[0].weight != before).float().mean() > 0.9
    gs.sparsify_(model, gs.Blocks(0.5, (4, 4)), format=second, where="0")
    kept = model[0].weight.mask() if second != gs.formats.Masked() else model[0].weight != 0
    steps(model, optimizer, x)
    now = model[0].weight if second == gs.formats.Masked() else model[0].weight.to_dense()
    assert torch.isfinite(now).all() and not now[~kept].any()


def test_lbfgs_keeps_its_history_while_weights_stay_as_they_are():
    model, x = gs.sparsify_(nn.Linear(4, 4), "50%"), torch.randn(8, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    state = optimizer.state[next(model.parameters())]
    steps(model, optimizer, x, 1)
    first = state["n_iter"]
    steps(model, optimizer, x, 1)
    assert state["n_iter"] > first > 0
    restart(optimizer)
    assert not optimizer.state[next(model.parameters())]
    restart(torch.optim.LBFGS(model.parameters()))  # which has none yet
