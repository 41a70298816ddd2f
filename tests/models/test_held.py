"""What a module knows of a sparse weight."""

import copy
import pickle

import pytest
import torch

import gossamer as gs
from gossamer.models.held import Held
from gossamer.models.rules import Rule

SHAPE = torch.Size([2, 3])
HOW = gs.Output.of((None, None, "50%", gs.CSR()))


@pytest.mark.parametrize(("format", "stored"), [(gs.CSR(), True), (gs.Masked(), False), (None, False)], ids=repr)
def test_only_other_formats_than_masked_are_stored(format, stored):
    assert Held(format, SHAPE).is_stored is stored


def test_when_the_next_gradient_counts_everywhere():
    held = Held(gs.Masked(), SHAPE)
    assert not held.whole and not held.collects_all
    held.open = True
    assert held.whole and not held.collects_all
    assert Held(gs.CSR(), SHAPE, gradient=HOW).whole and Held(gs.CSR(), SHAPE, gradient=HOW).collects_all
    held = Held(gs.CSR(), SHAPE, rule=Rule(HOW, every=2))
    assert not held.whole
    held.rule.steps = 1
    assert held.whole
    held = Held(gs.CSR(), SHAPE)
    held.collects = True
    assert held.collects_all and not held.whole


def test_parts_of_a_gradient_add_up_until_it_is_zeroed():
    held, grad = Held(gs.Masked(), SHAPE), torch.ones(2, 3)
    held.collect(grad, first=True)
    grad.fill_(5)  # backward may use its memory again
    held.collect(torch.full((2, 3), 2.0), first=False)
    assert held.collected.tolist() == [[3.0] * 3] * 2
    held.collect(torch.full((2, 3), 7.0), first=True)
    assert held.collected[0, 0] == 7.0
    held.collected = None
    held.collect(torch.ones(2, 3, requires_grad=True), first=False)
    assert held.collected[0, 0] == 1.0 and not held.collected.requires_grad


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda held: pickle.loads(pickle.dumps(held))])
def test_copies_have_what_was_asked_for_and_nothing_of_the_moment(copied):
    held = Held(gs.CSR(), SHAPE, HOW, Rule(HOW, every=3, steps=2))
    held.collects, held.open, held.collected, held.ranks = True, True, torch.ones(2, 3), object
    out = copied(held)
    assert (out.format, out.shape, out.gradient, out.rule) == (gs.CSR(), SHAPE, held.gradient, held.rule)
    assert out.rule is not held.rule
    assert (out.collects, out.open, out.collected, out.ranks, out.checked) == (False, False, None, None, None)
    out.rule.steps += 1
    assert held.rule.steps == 2
