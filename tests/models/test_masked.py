"""Masked parameters: gradients are clear outside of the mask, whoever wrote them and whoever reads them."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from gossamer.models import masked
from gossamer.models.home import GRAD, home_of
from gossamer.models.masked import MaskedParameter, clear_gradients
from gossamer.models.weights import all_weights


def layer(inputs=12, outputs=8, dtype=torch.float32):
    torch.manual_seed(0)
    return gs.sparsify_(nn.Linear(inputs, outputs, dtype=dtype), "75%")


def dense_gradient(fc, x):
    weight = fc.weight.detach().clone().requires_grad_()
    F.linear(x, weight, fc.bias).square().sum().backward()
    return weight.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_backward_calls_no_python_and_reading_clears(dtype):
    fc = layer(dtype=dtype)
    x = torch.randn(5, 12, dtype=dtype)
    expected = dense_gradient(fc, x)
    fc(x).square().sum().backward()
    assert not home_of(fc.weight).hooks and not fc.weight._backward_hooks
    mask = fc.weight.mask()
    assert GRAD.__get__(fc.weight)[~mask].abs().sum() > 0  # what autograd wrote
    assert torch.equal(fc.weight.grad, expected * mask)
    assert fc.weight.grad is GRAD.__get__(fc.weight)  # cleared in place


def test_a_second_backward_adds_and_is_cleared_again():
    fc, x = layer(), torch.randn(5, 12)
    expected = dense_gradient(fc, x) * fc.weight.mask()
    for count in (1, 2, 3):
        fc(x).square().sum().backward()
        torch.testing.assert_close(fc.weight.grad, count * expected)
    fc.weight.grad.add_(1.0)  # somebody else writes
    assert (fc.weight.grad[~fc.weight.mask()] == 0).all()


def test_not_finite_outside_of_the_mask_is_cleared():
    fc = layer()
    (fc.weight * torch.where(fc.weight.mask(), 1.0, float("inf"))).nansum().backward()
    mask = fc.weight.mask()
    assert not GRAD.__get__(fc.weight)[~mask].isfinite().any()
    assert torch.equal(fc.weight.grad, mask.float())


def test_an_assigned_gradient_is_not_written_to():
    fc = layer()
    given = torch.ones_like(fc.weight)
    fc.weight.grad = given
    assert torch.equal(fc.weight.grad, fc.weight.mask().float())
    assert (given == 1).all()
    fc.weight.grad = given
    clear_gradients([(fc.weight, home_of(fc.weight))])
    assert torch.equal(GRAD.__get__(fc.weight), fc.weight.mask().float()) and (given == 1).all()


def test_no_gradient():
    fc = layer()
    assert fc.weight.grad is None
    fc.weight.grad = None
    fc(torch.randn(2, 12)).sum().backward()
    del fc.weight.grad
    assert fc.weight.grad is None
    fc.requires_grad_(False)
    fc(torch.randn(2, 12))
    assert fc.weight.grad is None


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_a_gradient_with_a_graph_keeps_it():
    fc, x = layer(dtype=torch.float64), torch.randn(5, 12, dtype=torch.float64)
    fc(x).pow(3).sum().backward(create_graph=True)
    grad = fc.weight.grad
    assert grad.requires_grad and (grad[~fc.weight.mask()] == 0).all()
    (second,) = torch.autograd.grad(grad.square().sum(), fc.weight)
    weight, mask = fc.weight.detach().clone().requires_grad_(), fc.weight.mask()
    (first,) = torch.autograd.grad(F.linear(x, weight, fc.bias).pow(3).sum(), weight, create_graph=True)
    (expected,) = torch.autograd.grad((first * mask).square().sum(), weight)
    torch.testing.assert_close(second, expected)


def test_gradients_of_embeddings_are_dense_and_clear():
    table = nn.Embedding(10, 8, sparse=True)
    all_weights(table)["weight"].become(table.weight.detach().clone(), torch.rand(10, 8) < 0.5, gs.Masked())
    table(torch.tensor([1, 1, 7])).sum().backward()
    expected = torch.zeros(10, 8)
    expected[1], expected[7] = 2, 1
    assert torch.equal(table.weight.grad, expected * table.weight.mask())


def test_clipping_counts_kept_weights_only():
    fc, x = layer(), torch.randn(5, 12)
    expected = dense_gradient(fc, x) * fc.weight.mask()
    fc(x).square().sum().backward()
    norm = nn.utils.clip_grad_norm_([fc.weight], 1e9)
    torch.testing.assert_close(norm, expected.norm())


def test_an_optimizer_in_backward():
    fc = layer()
    mask, bias = fc.weight.mask(), fc.bias.detach().clone()
    steps = {p: torch.optim.Adam([p]) for p in fc.parameters()}

    def step(parameter):
        steps[parameter].step()
        steps[parameter].zero_grad()

    for p in fc.parameters():
        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        fc(torch.randn(5, 12)).square().sum().backward()
    assert (fc.weight[~mask] == 0).all() and not torch.equal(fc.bias, bias)


def test_a_whole_model_is_cleared_before_a_step(monkeypatch):
    model = gs.sparsify_(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3)).double(), "50%")
    model[2].weight.grad = torch.ones(3, 4, dtype=torch.float64)
    seen = []
    inner = torch._foreach_mul_
    monkeypatch.setattr(torch, "_foreach_mul_", lambda a, b: (seen.append(len(a)), inner(a, b))[1])
    model[:2](torch.randn(2, 6, dtype=torch.float64)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1, foreach=False).step()
    assert seen == [2]  # the third one is somebody else's
    for fc in model:
        assert (fc.weight.grad[~fc.weight.mask()] == 0).all() and (fc.weight[~fc.weight.mask()] == 0).all()


def test_copies_have_gradients_of_their_own():
    fc, x = layer(), torch.randn(5, 12)
    other = copy.deepcopy(fc)
    fc(x).sum().backward()
    other(2 * x).sum().backward()
    torch.testing.assert_close(other.weight.grad, 2 * fc.weight.grad)
    weight = fc.weight
    del fc
    gc.collect()
    assert isinstance(weight, MaskedParameter) and weight.grad is not None  # its module is gone, it is still a tensor


def test_moving_a_model_keeps_its_gradients():
    fc = layer()
    fc(torch.randn(5, 12)).sum().backward()
    fc.double()
    assert fc.weight.grad.dtype == torch.float64 and (fc.weight.grad[~fc.weight.mask()] == 0).all()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models(backend):
    fc, x = layer(), torch.randn(5, 12)
    expected = dense_gradient(fc, x) * fc.weight.mask()
    compiled = torch.compile(fc, backend=backend, fullgraph=True)
    compiled(x).square().sum().backward()
    torch.testing.assert_close(fc.weight.grad, expected)


def test_another_mask_leaves_an_assigned_gradient_to_its_owner():
    fc = layer()
    given = torch.ones_like(fc.weight)
    fc.weight.grad = given
    fewer = torch.zeros(8, 12, dtype=torch.bool)
    fewer[0] = fc.weight.mask()[0]
    all_weights(fc)["weight"].become(fc.weight.detach().clone(), fewer, gs.Masked())
    assert torch.equal(fc.weight.grad, fewer.float()) and (given == 1).all()


@pytest.fixture
def cleared_together(monkeypatch):
    """How many gradients each call has cleared."""
    seen = []
    clear_all = masked.clear_all
    monkeypatch.setattr(masked, "clear_all", lambda grads, masks: seen.append(len(grads)) or clear_all(grads, masks))
    return seen


def stepped(count=3):
    """A masked model that an optimizer has stepped once."""
    model = gs.sparsify_(nn.Sequential(*(nn.Linear(4, 4) for _ in range(count))), "50%")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model


def test_who_reads_one_gradient_clears_those_of_the_model(cleared_together):
    model = stepped()
    cleared_together.clear()
    model(torch.ones(1, 4)).sum().backward()
    for layer in model:
        assert not layer.weight.grad[~layer.weight.mask()].any()
    assert cleared_together == [3]
    model(torch.ones(1, 4)).sum().backward()  # accumulated: they are to be cleared again
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    assert cleared_together == [3, 3]
    assert norm == torch.stack([p.grad.norm() for p in model.parameters()]).norm()


def test_backward_clears_nothing_but_what_is_read(cleared_together):
    model = stepped()
    cleared_together.clear()
    seen = []
    for layer in model:
        layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append(int((p.grad[~p.mask()] != 0).sum())))
    model(torch.ones(1, 4)).sum().backward()
    assert cleared_together == [1, 1, 1] and seen == [0, 0, 0]


def test_gradients_of_a_model_that_is_gone_or_dense_are_left_out(cleared_together):
    model = stepped()
    layers = list(model)
    del model
    gs.densify_(layers[2])
    cleared_together.clear()
    layers[0](layers[2](torch.ones(1, 4))).sum().backward()
    whole = layers[2].weight.grad.clone()
    assert not layers[0].weight.grad[~layers[0].weight.mask()].any() and torch.equal(layers[2].weight.grad, whole)
    layers[1] = None
    layers[0](torch.ones(1, 4)).sum().backward()
    assert not layers[0].weight.grad[~layers[0].weight.mask()].any()
