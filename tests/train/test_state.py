"""What an optimizer remembers of a weight follows its mask."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.train.layers import become
from gossamer.train.state import settle, usual_squares


def usual_by_hand(squares, old):
    """Row mean x column mean / mean, position by position; a row or column without any has the mean of all."""

    def mean(values, otherwise):
        return sum(values) / len(values) if values else otherwise

    rows, columns = squares.shape
    every = mean([float(v) for v in squares[old]], 0.0)
    out = torch.zeros_like(squares)
    for i in range(rows):
        for j in range(columns):
            across = mean([float(squares[i, c]) for c in range(columns) if old[i, c]], every)
            down = mean([float(squares[r, j]) for r in range(rows) if old[r, j]], every)
            out[i, j] = across * down / every if every else 0.0
    return out


@pytest.mark.parametrize("seed", range(4))
def test_usual_squares_of_matrices_with_empty_rows_and_columns(seed):
    generator = torch.Generator().manual_seed(seed)
    squares, old = torch.rand(7, 5, generator=generator) ** 4, torch.rand(7, 5, generator=generator) < 0.3
    old[2], old[:, 1] = False, False
    torch.testing.assert_close(usual_squares(squares, old), usual_by_hand(squares, old), rtol=1e-5, atol=0)
    image = usual_squares(squares.view(7, 5, 1, 1), old.view(7, 5, 1, 1))
    torch.testing.assert_close(image.view(7, 5), usual_by_hand(squares, old), rtol=1e-5, atol=0)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (0, 4), (2, 0)])
def test_usual_squares_where_nothing_was_kept(shape):
    assert torch.equal(usual_squares(torch.rand(shape), torch.zeros(shape, dtype=torch.bool)), torch.zeros(shape))


def test_usual_squares_neither_overflow_nor_vanish():
    squares = torch.tensor([[1e-30, 1e-34], [1e-32, 1e-36]])
    torch.testing.assert_close(usual_squares(squares, squares < 1) / 1e-30, usual_by_hand(squares * 1e30, squares < 1))
    squares = torch.tensor([[1e30, 1e34], [1e32, 1e36]])
    assert torch.isfinite(usual_squares(squares, squares > 0)).all()


@pytest.mark.parametrize(("kind", "squares", "others"), [
    ("AdamW", ["exp_avg_sq"], ["exp_avg"]), ("Adagrad", ["sum"], []), ("RMSprop", ["square_avg"], []),
])  # fmt: skip
def test_grown_weights_start_with_the_squares_of_their_neighbours_and_no_momentum(kind, squares, others):
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
        expected = usual_by_hand(old[name], before & after)
        torch.testing.assert_close(state[name][after & ~before], expected[after & ~before], rtol=1e-5, atol=0)
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
