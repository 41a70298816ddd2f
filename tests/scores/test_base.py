"""What holds of every score."""

from __future__ import annotations

from math import prod

import pytest
import torch

from gossamer.scores import Fisher, Gradient, HardConcrete, Magnitude, Movement, Random, Score, Wanda

W = torch.tensor([[1.0, -2.0], [0.0, 0.5]])
G = torch.tensor([[-3.0, -1.0], [9.0, 2.0]])


def context(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    columns = prod(weight.shape[1:] if weight.dim() > 1 else weight.shape)
    return {
        "grad": torch.ones_like(weight),
        "grads": torch.ones(3, *weight.shape, dtype=weight.dtype),
        "log_alpha": torch.zeros_like(weight),
        "inputs": torch.ones(4, columns, dtype=weight.dtype),
    }


ALL: list[Score] = [Magnitude(), Random(3), Gradient(), Movement(), HardConcrete(), Wanda(), Fisher(block=3)]


def test_by_hand() -> None:
    assert Magnitude()(W).tolist() == [[1, 2], [0, 0.5]]
    assert Gradient()(W, grad=G).tolist() == [[3, 2], [0, 1]]
    assert Movement()(W, grad=G).tolist() == [[3, -2], [0, -1]]
    assert Wanda()(W, inputs=torch.tensor([[3.0, 1.0], [4.0, 0.0]])).tolist() == [[5, 2], [0, 0.5]]
    assert Wanda()(W, inputs=torch.tensor([5.0, 1.0])).tolist() == [[5, 2], [0, 0.5]]


@pytest.mark.parametrize("score", ALL, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 2, 2), (0, 4), (4, 0)], ids=str)
def test_any_shape_and_dtype(score: Score, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    weight = torch.ones(shape, dtype=dtype, requires_grad=True)
    rated = score(weight, **context(weight))
    assert rated.shape == weight.shape and not rated.requires_grad
    assert rated.dtype in (torch.float32, torch.float64)


@pytest.mark.parametrize("score", ALL, ids=repr)
def test_integers_are_refused(score: Score) -> None:
    with pytest.raises(TypeError, match=r"floating-point.*int64"):
        score(torch.ones(2, 2, dtype=torch.int64), **context(torch.ones(2, 2)))


@pytest.mark.parametrize("score", [s for s in ALL if s.needs], ids=repr)
def test_missing_context_says_which_keyword(score: Score) -> None:
    with pytest.raises(ValueError, match=f"Pass {score.needs[0]}=... as keyword"):
        score(W)


def test_half_precision_is_scored_in_float32() -> None:
    # 300 * 300 overflows float16.
    assert Gradient()(torch.tensor([300.0]).half(), grad=torch.tensor([300.0]).half()).item() == 90000


@pytest.mark.parametrize(
    ("score", "bad"),
    [
        (Gradient(), {"grad": torch.ones(3)}),
        (Gradient(), {"grad": torch.ones(1, 2, 2)}),
        (Movement(), {"grad": torch.ones(2)}),
        (HardConcrete(), {"log_alpha": torch.ones(2, 3)}),
        (Fisher(), {"grads": torch.ones(2, 2)}),
        (Fisher(), {"grads": torch.ones(0, 2, 2)}),
        (Fisher(), {"grads": torch.ones(1, 1, 2, 2)}),
        (Wanda(), {"inputs": torch.ones(4, 3)}),
    ],
    ids=repr,
)
def test_wrong_shapes_are_named(score: Score, bad: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        score(W, **bad)
