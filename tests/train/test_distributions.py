"""Budgets add up exactly."""

import math

import pytest
import torch
from hypothesis import given as draw
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn

import gossamer as gs
from gossamer.train.distributions import budgets, given, in_rows

SHAPES = [(300, 784), (100, 300), (10, 100)]


@pytest.mark.parametrize("distribution", ["uniform", "er", "erk"])
@pytest.mark.parametrize("sparsity", [0, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999])
def test_sum_is_exact(distribution, sparsity):
    found = budgets(SHAPES, sparsity, distribution)
    assert sum(found) == round((1 - sparsity) * sum(math.prod(s) for s in SHAPES))
    assert all(1 <= b <= math.prod(s) for b, s in zip(found, SHAPES, strict=True))


@settings(max_examples=60, deadline=None)
@draw(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(1, 3)), min_size=1, max_size=6),
    st.floats(0, 0.9),
    st.sampled_from(["uniform", "er", "erk"]),
)
def test_sum_is_exact_for_any_shapes(shapes, sparsity, distribution):
    sizes = [math.prod(s) for s in shapes]
    total = gs.train.distributions.kept(sparsity, sum(sizes))
    if total >= len(shapes):
        found = budgets(shapes, sparsity, distribution)
        assert sum(found) == total
        assert all(1 <= b <= size for b, size in zip(found, sizes, strict=True))


def test_uniform_by_hand():
    assert budgets([(10, 10), (10, 20)], 0.9, "uniform") == [10, 20]
    assert budgets([(3, 3), (3, 3)], 0.5, "uniform") == [5, 4]  # 9 of 18: one remainder goes up


def test_er_gives_small_layers_more():
    first, second, last = (b / math.prod(s) for b, s in zip(budgets(SHAPES, 0.9, "er"), SHAPES, strict=True))
    assert first < second < last


def test_a_layer_that_is_full_hands_on_the_rest():
    found = budgets([(1000, 1000), (10, 10)], 0.95, "erk")
    assert found[1] == 100
    assert sum(found) == round(0.05 * 1_000_100)


def test_too_sparse_is_an_error():
    with pytest.raises(ValueError, match="leaves 0 weights, but 2 layers need at least 2"):
        budgets([(2, 2), (2, 2)], 0.99)
    with pytest.raises(ValueError, match=r"distribution='best' is not known; choose from uniform, er, erk"):
        budgets(SHAPES, 0.9, "best")
    for sparsity in (-1, -1e-9, 1, 2, float("nan")):
        with pytest.raises(ValueError, match="from 0 to below 1"):
            budgets([(4, 4)], sparsity)


def test_odd_layers_and_distributions_end():
    assert budgets([], 0.5) == [] and budgets([(0, 4)], 0.5) == [0]
    assert budgets([(0, 4), (4, 4)], 0.5) == [0, 8]
    for each in ([-1.0], [1.0], [float("nan")]):
        with pytest.raises(ValueError, match="every sparsity must be from 0 to below 1"):
            budgets([(4, 4)], 0.5, each)
    for densities in ([0.0, 1.0], [-1.0, 1.0], [float("nan"), 1.0], [float("inf"), 1.0]):
        with pytest.raises(ValueError, match="a density above 0"):
            budgets([(4, 4), (4, 4)], 0.5, lambda shapes, found=densities: found)


def test_given():
    assert given({"a*": 0.5, "*": 0.75}, ["a.weight", "b.weight"], 0.9) == [0.5, 0.75]
    assert budgets([(4, 4), (4, 4)], 0.9, [0.5, 0.75]) == [8, 4]
    with pytest.raises(ValueError, match=r"did you mean 'a\.weight'"):
        given({"a.wieght": 0.5}, ["a.weight"], 0.9)
    with pytest.raises(ValueError, match="must be from 0 to below 1"):
        given({"a*": 1.5}, ["a.weight"], 0.9)


def test_whole_rows():
    assert in_rows([105, 127], [(10, 50), (20, 50)], [10, 20]) == [110, 120]  # the second's 7 don't make a row of 20
    assert sum(in_rows([105, 127], [(10, 50), (20, 50)], [10, 20])) <= 232


@pytest.mark.parametrize("method", ["Static", "SET", "RigL"])
@pytest.mark.parametrize("sparsity", [0.5, 0.9, 0.97])
def test_models_have_exactly_the_sparsity_asked_for(method, sparsity):
    model = nn.Sequential(nn.Linear(50, 60), nn.ReLU(), nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    getattr(gs.train, method)(model, optimizer, sparsity, until=100)
    weights = [m.weight for m in model if isinstance(m, nn.Linear)]
    assert sum(w.nnz for w in weights) == round((1 - sparsity) * sum(w.numel() for w in weights))
