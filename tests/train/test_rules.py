"""Masks small enough to check by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gossamer as gs
from gossamer.train.layers import Layer
from gossamer.train.rules import exchange, in_order, magnitude, random, top


def layer_of(weight, grad=None):
    weight = torch.tensor(weight)
    source = gs.nn.all_weights(torch.nn.Linear(weight.shape[1], weight.shape[0]))["weight"]
    source.become(weight, weight != 0, gs.Masked())
    return Layer("w", source, tuple(weight.shape), grad=None if grad is None else torch.tensor(grad))


def mask_of(rows):
    return torch.tensor([[c == "x" for c in row] for row in rows])


def test_rigl_by_hand():
    layer = layer_of([[5.0, -1.0, 0.0, 0.0], [0.0, 2.0, 0.0, 3.0]], [[9.0, 0.0, -4.0, 1.0], [2.0, 9.0, 5.0, 9.0]])
    # -1 and 2 go; of what is free (the two that went too) 5 and 9 are the largest gradients: the 2 comes back
    assert torch.equal(exchange(layer, 2), mask_of(["x...", ".xxx"]))


def test_set_draws_from_what_is_free():
    layer = layer_of([[5.0, -1.0, 0.0, 0.0], [0.0, 2.0, 0.0, 3.0]])
    layer.rng.manual_seed(0)
    new = exchange(layer, 1, magnitude, random)
    assert int(new.sum()) == 4
    assert new[0, 0] and new[1, 1] and new[1, 3]


def test_top_prefers_lower_indices_and_refuses_nan():
    assert top(torch.ones(4), 2).tolist() == [True, True, False, False]
    with pytest.raises(ValueError, match="NaN"):
        top(torch.tensor([1.0, float("nan")]), 1)


def test_exchange_of_blocks_by_hand():
    layer = layer_of(
        [[3.0, 3.0, 0.0, 0.0, 1.0, 1.0], [3.0, 3.0, 0.0, 0.0, 9.0, -1.0]],
        [[0.0, 0.0, 2.0, 2.0, 1.0, 0.0], [0.0, 0.0, 2.0, 2.0, 0.0, 0.0]],
    )
    layer.pattern = gs.Blocks(
        1 / 3, (2, 2)
    )  # means 3 and 3; of equals the first block is dropped, and the middle grows
    assert torch.equal(exchange(layer, 4), mask_of(["..xxxx", "..xxxx"]))
    assert torch.equal(exchange(layer, 3), layer.mask)  # no whole block has at most three weights


def test_exchange_of_shared_columns_by_hand():
    weight = [[5.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [5.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0]]
    grad = [[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0, 0.0]]
    layer = layer_of(weight, grad)
    layer.pattern = gs.VNM("all", 2, 8)
    assert torch.equal(exchange(layer, 2), mask_of(["xx......", "x.....x."]))  # column 3 goes, column 6 comes


def test_fan_in_fills_each_row():
    layer = layer_of([[5.0, 4.0, 0.0, 0.0], [1.0, 2.0, 0.0, 0.0]], [[0.0, 0.0, 9.0, 0.0], [0.0, 0.0, 1.0, 3.0]])
    layer.pattern = gs.FanIn(k=2)
    assert torch.equal(exchange(layer, 2), mask_of(["xx..", "..xx"]))
    assert torch.equal(exchange(layer, 1), mask_of(["xx..", ".x.x"]))


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 1), (3, 9), (4, 8)])
@pytest.mark.parametrize("pattern", ["2:4", "all:2:8", "block 2x2 50%", "fan-in 50%", "1:4:g1"])
def test_sizes(shape, pattern):
    torch.manual_seed(0)
    pattern = gs.patterns.as_pattern(pattern)
    mask = pattern.select(torch.rand(shape))
    layer = layer_of((torch.randn(shape) * mask).tolist(), torch.randn(shape).tolist())
    layer.pattern = pattern
    for count in (0, 1, layer.kept):
        new = exchange(layer, count)
        assert new.shape == shape
        if not isinstance(pattern, gs.GroupedNM | gs.Blocks):  # whose edges may hold fewer
            assert int(new.sum()) == int(mask.sum())


def test_in_order_keeps_every_difference():
    first = torch.tensor([True, False, False, False])
    scores = in_order(first, torch.full((4,), -9.0), torch.tensor([0.0, 1.0, 1.0 + 2**-23, 1e-30]))
    assert scores.argsort(descending=True).tolist() == [0, 2, 1, 3]
    assert in_order(first[:0], torch.zeros(0), torch.zeros(0)).shape == (0,)
    assert in_order(first, torch.tensor([torch.inf, 0, 0, 0]), torch.full((4,), -torch.inf)).isfinite().all()


@given(
    rows=st.integers(1, 17),
    columns=st.integers(1, 17),
    share=st.floats(0, 1),
    pattern=st.sampled_from([gs.NM(2, 4), gs.FanIn(0.5), gs.Unstructured(0.5, per="row"), gs.VNM(4, 2, 8)]),
    seed=st.integers(0, 99),
)
def test_exchange_satisfies_the_pattern_and_keeps_what_stays(rows, columns, share, pattern, seed):
    torch.manual_seed(seed)
    mask = pattern.select(torch.rand(rows, columns))
    weight = (torch.rand(rows, columns) + 0.1) * mask
    layer = layer_of(weight.tolist(), torch.randn(rows, columns).tolist())
    layer.pattern = pattern
    count = int(share * layer.kept)
    new = exchange(layer, count)
    assert torch.equal(pattern.select(new.float()), new)
    assert int((mask & ~new).sum()) <= count or isinstance(pattern, gs.VNM)  # which weighs sums over rows
    assert int(new.sum()) == int(mask.sum())
