"""|w|."""

import pytest
import torch

from gossamer.scores import Magnitude


def test_by_hand():
    assert Magnitude()(torch.tensor([[-2.0, 1.0], [0.0, -0.5]])).tolist() == [[2.0, 1.0], [0.0, 0.5]]
    assert Magnitude.needs == () and Magnitude() == Magnitude()


@pytest.mark.parametrize(
    ("dtype", "out"),
    [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float64, torch.float64)],
    ids=str,
)
def test_half_precision_is_scored_in_float32(dtype, out):
    scores = Magnitude()(torch.tensor([-1.5], dtype=dtype))
    assert scores.dtype is out and scores.item() == 1.5


def test_what_it_does_not_need_it_ignores_and_no_graph_is_made():
    w = torch.tensor([-1.0], requires_grad=True)
    assert not Magnitude()(w, grad=torch.ones(1)).requires_grad
    assert Magnitude()(torch.ones(0, 3)).shape == (0, 3)
