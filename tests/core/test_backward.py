"""A backward of one's own around a forward: which arguments it gets, and where its gradients go."""

import pytest
import torch

from gossamer.core.backward import with_backward


def product(a, b, scale=1.0):
    return a * b * scale


def test_the_backward_gets_the_gradient_then_the_arguments_by_hand():
    run = with_backward(product, lambda grad, a, b: (10 * grad * b, 100 * grad * a))
    a = torch.tensor([2.0], requires_grad=True)
    b = torch.tensor([3.0], requires_grad=True)
    out = run(a, b)
    out.backward(torch.tensor([1.5]))
    assert out.item() == 6.0
    assert (a.grad.item(), b.grad.item()) == (45.0, 300.0)


def test_one_gradient_needs_no_tuple_and_belongs_to_the_first_argument():
    run = with_backward(product, lambda grad, a, b: 7 * grad)
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    run(a, b).sum().backward()
    assert a.grad.tolist() == [7.0, 7.0] and b.grad is None


def test_options_reach_the_forward_and_only_the_forward():
    run = with_backward(product, lambda grad, a, b: (grad, grad))
    a, b = torch.tensor([2.0], requires_grad=True), torch.tensor([3.0])
    out = run(a, b, scale=-1.0)
    assert out.item() == -6.0
    out.backward()
    assert a.grad.item() == 1.0


def test_arguments_without_a_gradient_may_be_anything():
    run = with_backward(lambda a, n, flag: a * n if flag else a, lambda grad, a, n, flag: grad * n)
    a = torch.tensor([2.0], requires_grad=True)
    run(a, 4, True).backward()
    assert a.grad.item() == 4.0


def test_a_backward_with_too_many_gradients_is_torchs_error():
    run = with_backward(product, lambda grad, a, b: (grad, grad, grad))
    a = torch.ones(1, requires_grad=True)
    with pytest.raises(RuntimeError, match="incorrect number of gradients"):
        run(a, a).backward()
