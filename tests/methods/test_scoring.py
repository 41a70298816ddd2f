from dataclasses import dataclass
from typing import ClassVar

import torch

import gossamer as gs
from gossamer.methods.scoring import missing, scores_of


def test_groups_of_a_convolution_have_their_own_inputs():
    norms = torch.tensor([[1.0, 10.0], [5.0, 0.0]])
    weight = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]])
    want = [[1.0, 10.0], [2.0, 20.0], [15.0, 0.0], [20.0, 0.0]]
    assert scores_of(gs.Wanda(), weight, inputs=norms).tolist() == want


def test_what_a_score_does_not_need_changes_nothing():
    weight = torch.randn(4, 6)
    have = {"inputs": torch.rand(2, 6), "grad": torch.randn(4, 6), "grads": torch.randn(3, 4, 6)}
    assert torch.equal(scores_of(gs.Magnitude(), weight, **have), weight.abs())
    assert torch.equal(scores_of(gs.Gradient(), weight, **have), (weight * have["grad"]).abs())
    assert torch.equal(scores_of(gs.Random(1), weight, offset=5), gs.Random(1)(torch.empty(29))[5:].view(4, 6))


def test_gradients_are_split_like_the_rows():
    @dataclass(frozen=True)
    class Both(gs.Score):
        needs: ClassVar[tuple[str, ...]] = ("inputs", "grad", "grads")

        def rate(self, weight, *, inputs, grad, grads, **_):
            return weight * inputs + grad + grads.sum(0)

    weight, grad, grads = torch.randn(4, 6), torch.randn(4, 6), torch.randn(3, 4, 6)
    norms = torch.rand(2, 6)
    want = weight * norms.repeat_interleave(2, 0) + grad + grads.sum(0)
    torch.testing.assert_close(scores_of(Both(), weight, inputs=norms, grad=grad, grads=grads), want)


def test_what_no_data_can_give():
    assert missing(gs.HardConcrete()) == ["log_alpha"]
    assert all(not missing(score) for score in (gs.Magnitude(), gs.Wanda(), gs.Fisher(), gs.Movement(), gs.Random()))
