"""Gates whose number is wanted: one step by hand, and the cut."""

import math

import pytest
import torch

from gossamer.scores import HardConcrete
from gossamer.train.pricing import Push, cut, push, remember

GATES = HardConcrete()
HALF = GATES.beta * math.log(-GATES.gamma / GATES.zeta)  # log_alpha of a gate that is open half of the time


class Gated:
    """As much of a layer as the functions read."""

    def __init__(self, alpha, **extra):
        alpha = torch.as_tensor(alpha).requires_grad_()
        (cost,) = torch.autograd.grad(GATES.penalty(alpha), alpha)
        self.extra, self.size = {"log_alpha": alpha.detach(), "cost": cost, **extra}, alpha.numel()


def test_a_step_by_hand():
    layers = [Gated([[HALF, HALF]]), Gated([HALF, HALF])]  # 2 of 4 are open; raising all by 1 opens 4 * 1/4 more
    for wanted, shift in ((2.0, 0.0), (1.5, 0.5), (2.25, -0.25), (0.0, 1.0), (4.0, -1.0)):
        assert float(push(layers, GATES, wanted).shift) == pytest.approx(shift, abs=1e-6)


def test_gradients_are_divided_by_their_root_mean_square():
    layers = [Gated([0.0] * 3, square=torch.tensor(27.0)), Gated([0.0], square=torch.tensor(9.0)), Gated([0.0] * 9)]
    assert float(push(layers, GATES, 5.0).unit) == 3.0  # of the four that have had a gradient
    step = Push(torch.tensor(3.0), torch.tensor(0.0))
    torch.testing.assert_close(step(torch.zeros(2), torch.tensor([3.0, -6.0]), 0.5), torch.tensor([-0.5, 1.0]))


def test_without_a_gradient_only_the_number_counts():
    (layer,) = layers = [Gated([1.0, 2.0])]
    step = push(layers, GATES, 1.5)
    moved = step(layer.extra["log_alpha"], torch.tensor([5.0, -5.0]), 1.0)
    assert float(moved[1] - moved[0]) == 1.0 and moved[0] < 1.0
    layer.extra["square"] = torch.tensor(0.0)  # and no division by zero
    assert torch.equal(push(layers, GATES, 1.5)(layer.extra["log_alpha"], torch.zeros(2), 1.0), moved)


def test_gates_stay_where_they_can_learn():
    step = Push(torch.tensor(1.0), torch.tensor(0.0))
    assert step(torch.zeros(2), torch.tensor([1e9, -1e9]), 1.0).tolist() == [-8.0, 9.0]
    assert step(torch.zeros(2, dtype=torch.float64), torch.ones(2), 1.0).dtype == torch.float64


def test_newton_s_steps_arrive():
    torch.manual_seed(0)
    layers = [Gated(torch.randn(50, 40) * 3), Gated(torch.full((300,), 6.0))]
    for _ in range(12):
        step = push(layers, GATES, 230.0)
        layers = [Gated(step(each.extra["log_alpha"], torch.zeros(()), 0.0)) for each in layers]
    assert float(sum(GATES.penalty(each.extra["log_alpha"]) for each in layers)) == pytest.approx(230, rel=1e-3)


def test_squares_are_a_mean_over_steps():
    own = {}
    remember(own, torch.tensor([3.0, 4.0]))
    assert float(own["square"]) == 25
    remember(own, torch.tensor([3.0, 4.0]).half())
    assert float(own["square"]) == pytest.approx(25)
    for _ in range(200):
        remember(own, torch.tensor([0.0, 1.0]))
    assert float(own["square"]) == pytest.approx(1, rel=1e-2)


@pytest.mark.parametrize("count", [0, 1, 3, 5, 8])
def test_the_cut_keeps_the_most_open_of_all_layers(count):
    layers = [Gated([[4.0, -7.0], [1.0, 1.0]]), Gated([1.0, 5.0, -8.0, -3.0])]
    cut(layers, count, GATES)
    gates = torch.cat([GATES.gate(each.extra["log_alpha"]).reshape(-1) for each in layers])
    order = [5, 0, 2, 3, 4, 7, 1, 6]  # of the three equal ones the first come first
    assert sorted(order[:count]) == gates.nonzero().view(-1).tolist()
    assert [each.budget for each in layers] == [int((gates[:4] > 0).sum()), int((gates[4:] > 0).sum())]
    assert (gates[gates > 0] > 0.1).all()
