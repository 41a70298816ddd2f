import torch

import gossamer as gs
from gossamer.scores.collect import Mean, Stack


def test_mean_and_stack():
    grads = torch.randn(5, 3, 4)
    mean, stack = Mean(3, 4, count=5), Stack(3, 4, count=5)
    assert mean.empty and stack.empty
    for grad in grads:
        mean.add(grad)
        stack.add(grad)
    torch.testing.assert_close(mean.context["grad"], grads.mean(0))
    assert torch.equal(stack.context["grads"], grads) and not stack.empty
    assert (mean.nbytes, stack.nbytes) == (48, 240)


def test_every_score_collects_what_it_needs():
    weight, grads = torch.randn(3, 8), torch.randn(6, 3, 8)
    for score in (gs.Gradient(), gs.Movement(), gs.Fisher(block=4)):
        collector = score.collector(3, 8, count=6)
        for grad in grads:
            collector.add(grad)
        want = score(weight, grad=grads.mean(0), grads=grads)
        torch.testing.assert_close(score(weight, **collector.context), want)
    assert gs.Magnitude().collector(3, 8, count=6) is None and gs.Wanda().collector(3, 8, count=6) is None
