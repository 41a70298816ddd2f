"""|w g|: the first-order change of the loss."""

import pytest
import torch

import gossamer as gs
from gossamer.scores import Gradient


def test_by_hand():
    w, g = torch.tensor([[2.0, -3.0], [0.0, 4.0]]), torch.tensor([[-1.0, -0.5], [9.0, 0.25]])
    assert Gradient()(w, grad=g).tolist() == [[2.0, 1.5], [0.0, 1.0]]
    assert Gradient.needs == ("grad",)


def test_it_is_the_change_of_a_linear_loss():
    w, g = torch.randn(5), torch.randn(5)
    for i, score in enumerate(Gradient()(w, grad=g)):
        without = w.clone()
        without[i] = 0
        torch.testing.assert_close(
            score, (g @ w - g @ without).abs(), rtol=0, atol=16 * 2**-24 * float((g * w).abs().sum())
        )


def test_even_rows_and_columns():
    torch.manual_seed(0)
    inner = torch.rand(6, 10) + 0.5
    plain = Gradient(even=True)(torch.ones(6, 10), grad=inner)
    scaled = Gradient(even=True)(torch.ones(6, 10), grad=inner * torch.logspace(-3, 3, 6)[:, None])
    by_row = scaled.mean(1)
    assert by_row.max() < 2 * by_row.min()  # a million times the gradient, and hardly more of the score
    exact = inner / (inner.square().mean(1, keepdim=True) * inner.square().mean(0, keepdim=True)).sqrt()
    torch.testing.assert_close(plain / plain.amax(), exact / exact.amax())
    assert torch.equal(Gradient(even=True)(torch.ones(6, 10), grad=-inner), plain)


def test_even_of_zeros_large_numbers_and_other_shapes():
    even = Gradient(even=True)
    assert not even(torch.ones(2, 3), grad=torch.zeros(2, 3)).any()
    some = even(torch.ones(2, 3), grad=torch.tensor([[0.0, 0.0, 0.0], [1e30, -1e30, 0.0]]))
    assert some.isfinite().all() and (some > 0).tolist() == [[False] * 3, [True, True, False]]
    assert even(torch.ones(4, 2, 3, 3), grad=torch.randn(4, 2, 3, 3)).shape == (4, 2, 3, 3)
    assert even(torch.ones(5), grad=torch.randn(5)).shape == (5,) and even(
        torch.ones(0, 3), grad=torch.ones(0, 3)
    ).shape == (0, 3)
    assert repr(even) == "Gradient(even=True)" and repr(Gradient()) == "Gradient()"


def test_half_precision_does_not_underflow():
    w = torch.full((2,), 1e-4).half()
    assert (Gradient()(w, grad=torch.full((2,), 1e-4).half()) > 0).all()


def test_what_is_refused():
    with pytest.raises((TypeError, ValueError), match="grad"):
        Gradient()(torch.ones(2))
    with pytest.raises(ValueError, match=r"Gradient.*grad"):
        Gradient()(torch.ones(2), grad=torch.ones(3))


def test_with_a_pattern():
    keep = gs.Sparsifier(gs.patterns.Unstructured(0.5), Gradient())
    assert keep.mask(torch.tensor([4.0, 1.0]), grad=torch.tensor([0.1, 1.0])).tolist() == [False, True]
