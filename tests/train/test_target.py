"""Sparsities and patterns, and what they mean for a layer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gossamer as gs
from gossamer.train.layers import Layer
from gossamer.train.target import Target, as_target, fitted, kept_by, own_sparsity


def layer_of(rows, columns):
    return Layer("w", gs.nn.all_weights(nn.Linear(columns, rows))["weight"], (rows, columns))


@pytest.mark.parametrize(
    "sparsity, pattern, wanted",
    [
        (None, None, Target(0.9, None)),
        (0.5, None, Target(0.5, None)),
        ("95%", None, Target(0.95, None)),
        (None, gs.Unstructured(0.8), Target(0.8, None)),
        (None, gs.Unstructured(0.8, per="row"), Target(0.8, gs.Unstructured(0.8, per="row"))),
        (gs.NM(2, 4), None, Target(None, gs.NM(2, 4))),
        (0.5, gs.NM(2, 4), Target(None, gs.NM(2, 4))),
        (0.75, "all:2:8", Target(None, gs.VNM("all", 2, 8))),
        (None, "block 4x4 80%", Target(0.8, gs.Blocks(0.8))),
        (None, gs.FanIn(k=4), Target(None, gs.FanIn(k=4))),
    ],
)
def test_targets(sparsity, pattern, wanted):
    assert as_target("RigL", sparsity, pattern) == wanted


@given(rows=st.integers(1, 40), columns=st.integers(1, 40), share=st.floats(0, 1), which=st.integers(0, 3))
def test_a_fitted_pattern_keeps_something_and_what_it_says(rows, columns, share, which):
    patterns = [gs.FanIn(0.9), gs.Blocks(0.9, (4, 4)), gs.Unstructured(0.9, per="row"), gs.NM(2, 4)]
    layer = layer_of(rows, columns)
    budget = round(share * layer.size)
    pattern = fitted(patterns[which], layer, budget)
    mask = pattern.select(torch.rand(rows, columns))
    assert mask.any()
    if which != 1 or not (rows % 4 or columns % 4):  # blocks at the edges are smaller
        assert int(mask.sum()) == kept_by(pattern, layer)
    if which == 0 and budget >= rows:
        assert abs(kept_by(pattern, layer) - budget) <= rows  # at most one input a neuron
    assert (own_sparsity(pattern) is None) == (which == 3)


def test_a_pattern_of_ones_own_is_counted():
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Diagonal(gs.Pattern):
        def pick(self, scores):
            return torch.eye(*scores.shape, dtype=torch.bool)

    assert kept_by(Diagonal(), layer_of(4, 6)) == 4
    model = nn.Linear(6, 4)
    gs.train.RigL(model, torch.optim.SGD(model.parameters(), lr=0.1), Diagonal(), until=10)
    assert torch.equal(model.weight.mask(), torch.eye(4, 6, dtype=torch.bool))
