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
    names, shapes, least = ["a.weight", "b.weight"], [(4, 5), (4, 10)], [1, 1]
    assert given({"a*": 0.5, "*": 0.75}, names, shapes, 0.9, least) == [10, 10]
    assert given({"a*": 0.0}, names, shapes, 0.9, least) == [20, 4]
    assert given({"b*": 0.99}, names, shapes, 0.5, [1, 3]) == [10, 3]
    assert budgets(shapes, 0.9, [0.5, 0.75]) == [10, 10]
    with pytest.raises(ValueError, match=r"did you mean 'a\.weight'"):
        given({"a.wieght": 0.5}, names, shapes, 0.9, least)
    with pytest.raises(ValueError, match="must be from 0 to below 1"):
        given({"a*": 1.5}, names, shapes, 0.9, least)
    with pytest.raises(ValueError, match="or one of uniform, er, erk"):
        given({"a*": "best"}, names, shapes, 0.9, least)


def test_other_layers_make_up_for_given_ones():
    names, shapes = ["in", "mid", "head"], [(40, 20), (40, 40), (10, 40)]
    size = sum(rows * cols for rows, cols in shapes)
    out = given({"head": 0.0, "*": "erk"}, names, shapes, 0.8, [1, 1, 1])
    assert out[2] == 400 and sum(out) == round(0.2 * size)
    assert out[:2] == budgets(shapes[:2], 1 - (sum(out) - 400) / 2400, "erk")
    sparse = given({"head": 0.99, "*": "uniform"}, names, shapes, 0.8, [1, 1, 1])
    assert sum(sparse) == sum(out) and sparse[2] == 4
    with pytest.raises(ValueError, match=r"the given layers leave -120 weights, but 2 layers need at least 2"):
        given({"head": 0.0, "*": "erk"}, names, shapes, 0.9, [1, 1, 1])
    with pytest.raises(ValueError, match=r"leave 2,512 weights for layers that have 2,400"):
        given({"head": 0.99, "*": "erk"}, names, shapes, 0.1015, [1, 1, 1])
    with pytest.raises(ValueError, match="2 distributions"):
        given({"head": "uniform", "*": "erk"}, names, shapes, 0.9, [1, 1, 1])


def test_methods_take_given_layers_with_a_distribution():
    def layers(method, **options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        made = method(model, optimizer, 0.8, distribution={"4": 0.0, "*": "erk"}, **options)
        for _ in range(4):
            model(torch.randn(4, 20)).square().sum().backward()
            optimizer.step()
            made.step()
        return [layer.kept for layer in made.layers]

    fixed = layers(gs.train.Static)
    assert fixed[2] == 400 and sum(fixed) == 560
    assert layers(gs.train.RigL, every=2, until=4) == fixed
    assert layers(gs.train.GMP, every=1, until=4) == fixed
    half = layers(gs.train.GMP, every=2, until=8, schedule="linear")
    assert half == [800 - round((800 - fixed[0]) / 2), 1600 - round((1600 - fixed[1]) / 2), 400]


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
