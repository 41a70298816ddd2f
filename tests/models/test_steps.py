"""What happens around the steps of optimizers."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.models.rules import Rule

W = [[4.0, 0.0, 3.0, 0.0]]


def layer(format, **options):
    made = nn.Linear(4, 1, bias=False)
    weight = gs.nn.all_weights(made)["weight"]
    weight.become(torch.tensor(W), torch.tensor(W) != 0, format)
    for name, value in options.items():
        setattr(weight.held, name, value)
    return made


def step(module, optimizer, x=(1.0, 2.0, 3.0, 4.0)):
    optimizer.zero_grad()
    module(torch.tensor([x])).sum().backward()
    optimizer.step()


def dense(module):
    return gs.nn.all_weights(module)["weight"].dense().tolist()


formats = pytest.mark.parametrize("format", [gs.Masked(), gs.CSR()], ids=repr)


@formats
def test_an_ordinary_step_by_hand(format):
    module = layer(format)
    step(module, torch.optim.SGD(module.parameters(), lr=0.5))
    assert dense(module) == [[3.5, 0.0, 1.5, 0.0]]


class Fills(torch.optim.SGD):
    """Writes everywhere: what no optimizer of torch does."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                torch.Tensor.add_(p.data, 1.0)


def test_what_an_unusual_optimizer_writes_outside_of_the_mask_is_cleared():
    module = layer(gs.Masked())
    optimizer = Fills(module.parameters(), lr=1.0)
    step(module, optimizer)
    assert dense(module) == [[5.0, 0.0, 4.0, 0.0]]


@formats
def test_a_rule_chooses_again_after_a_step_at_every_position(format):
    how = gs.Output.of((None, None, "50%", format))
    module = layer(format)
    gs.nn.all_weights(module)["weight"].held.rule = Rule(how, every=2)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    step(module, optimizer)  # 4 - 1, 3 - 3: the pattern is fixed
    assert dense(module) == [[3.0, 0.0, 0.0, 0.0]]
    step(module, optimizer)  # 3 - 1, 0 - 2, 0 - 3, 0 - 4: the two largest
    assert dense(module) == [[0.0, 0.0, -3.0, -4.0]]
    assert module.weight.format == format and module.weight.nnz == 2
    assert gs.nn.all_weights(module)["weight"].held.rule.steps == 2
    step(module, optimizer)
    assert dense(module) == [[0.0, 0.0, -6.0, -8.0]]


@formats
def test_steps_without_a_gradient_do_not_count(format):
    module = layer(format)
    held = gs.nn.all_weights(module)["weight"].held
    held.rule = Rule(gs.Output.of((None, None, "50%", format)), every=2)
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    assert held.rule.steps == 0 and dense(module) == W


@formats
def test_a_choice_that_fails_leaves_the_pattern(format):
    module = layer(format)
    held = gs.nn.all_weights(module)["weight"].held
    held.rule = Rule(gs.Output.of((None, None, "50%", format)), every=1)
    with pytest.raises(ValueError, match=r"NaN|nan"):
        step(module, torch.optim.SGD(module.parameters(), lr=1.0), x=(1.0, float("nan"), 1.0, 1.0))
    assert module.weight.mask().tolist() == [[True, False, True, False]] and module.weight.format == format


@formats
def test_a_sparse_gradient_is_what_the_optimizer_gets(format):
    module = layer(format)
    gs.nn.all_weights(module)["weight"].sparsify_gradient(gs.Output.of((None, None, "50%", gs.CSR())))
    step(module, torch.optim.SGD(module.parameters(), lr=1.0))  # of 1, 2, 3, 4 are kept 3 and 4, of which 3 is stored
    assert dense(module) == [[4.0, 0.0, 0.0, 0.0]]


@formats
def test_momentum_follows_a_weight_that_is_chosen_again(format):
    module = layer(format)
    gs.nn.all_weights(module)["weight"].held.rule = Rule(gs.Output.of((None, None, "50%", format)), every=1)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.5)
    step(module, optimizer, x=(0.0, 8.0, 0.0, 0.0))  # 4, -8, 3, 0: positions 0 and 1 are kept
    assert dense(module) == [[4.0, -8.0, 0.0, 0.0]]
    step(module, optimizer, x=(0.0, 0.0, 0.0, 0.0))
    assert module.weight.mask().tolist() == [[True, True, False, False]]
    assert dense(module)[0][1] in (-8.0, -12.0)  # the momentum of what was grown is kept, or starts at 0
