"""What an optimizer remembers of a weight follows its mask."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.train.layers import become
from gossamer.train.state import settle


@pytest.mark.parametrize(("kind", "squares", "others"), [
    ("AdamW", ["exp_avg_sq"], ["exp_avg"]), ("Adagrad", ["sum"], []), ("RMSprop", ["square_avg"], []),
])  # fmt: skip
def test_grown_weights_start_with_the_mean_of_squares_and_no_momentum(kind, squares, others):
    torch.manual_seed(0)
    model = gs.sparsify_(nn.Linear(6, 4, bias=False), "50%")
    weight = gs.nn.all_weights(model)["weight"]
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    model(torch.randn(5, 6)).square().sum().backward()
    optimizer.step()
    before = weight.mask().clone()
    old = {name: optimizer.state[weight.parameter][name].clone() for name in (*squares, *others)}
    after = before.roll(1, 1)
    become(weight, None, after)
    settle(optimizer, weight, after & ~before)
    state = optimizer.state[weight.parameter]
    for name in squares:
        stayed = old[name][before & after]
        torch.testing.assert_close(state[name][after & ~before], stayed.mean().expand(int((after & ~before).sum())))
        assert torch.equal(state[name][before & after], stayed) and not state[name][~after].any()
    for name in others:
        assert not state[name][after & ~before].any() and not state[name][~after].any()


def test_without_grown_ones_squares_start_at_zero():
    model = gs.sparsify_(nn.Linear(6, 4, bias=False), "50%")
    weight = gs.nn.all_weights(model)["weight"]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.randn(5, 6)).square().sum().backward()
    optimizer.step()
    before = weight.mask().clone()
    become(weight, None, ~before)
    settle(optimizer, weight)
    assert not optimizer.state[weight.parameter]["exp_avg_sq"].any()


def test_an_optimizer_that_remembers_nothing():
    model = gs.sparsify_(nn.Linear(6, 4), "50%")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settle(optimizer, gs.nn.all_weights(model)["weight"])
    assert not optimizer.state
