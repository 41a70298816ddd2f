"""Operators on lists: in place on the stored values, otherwise a tensor at a time."""

import math

import pytest
import torch

import gossamer as gs
from gossamer.core.dispatch import choose
from gossamer.core.lists import keeps_zeros

DENSE = [[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]]


def sparse(format=None, rows=DENSE):
    return gs.from_dense(torch.tensor(rows), format or gs.CSR())


def test_in_place_by_hand_sparse_and_dense_in_one_list():
    w, d = sparse(), torch.ones(2)
    torch._foreach_add_([w, d], [torch.full((2, 3), 10.0), torch.tensor([1.0, 2.0])], alpha=2)
    assert w.values().tolist() == [22.0, 23.0, 24.0] and w.nnz == 3
    assert d.tolist() == [3.0, 5.0]


def test_each_tensor_has_its_own_scalar():
    a, b = sparse(), sparse()
    torch._foreach_mul_([a, b], [2.0, -1.0])
    assert a.values().tolist() == [4.0, 6.0, 8.0] and b.values().tolist() == [-2.0, -3.0, -4.0]


def test_a_new_list_is_computed_one_by_one():
    a, d = sparse(), torch.tensor([1.0, 5.0])
    out = torch._foreach_mul([a, d], [2.0, 3.0])
    assert type(out) is list and out[0].format == gs.CSR()
    assert out[0].values().tolist() == [4.0, 6.0, 8.0] and out[1].tolist() == [3.0, 15.0]
    assert a.values().tolist() == [2.0, 3.0, 4.0]


@pytest.mark.parametrize(("name", "want"), [("addcmul", 2 + 0.5 * 2 * 4), ("addcdiv", 2 + 0.5 * 2 / 4)])
def test_the_scalar_of_addcmul_and_addcdiv_is_their_value(name, want):
    a, b = sparse(), torch.full((2, 3), 2.0)
    with gs.fallback("silent"):
        (out,) = getattr(torch, f"_foreach_{name}")([a], [b], [b * 2], 0.5)
    assert out.to_dense()[0, 1].item() == want


@pytest.mark.parametrize("format", [gs.Dense(), gs.COO()], ids=repr)
def test_operands_of_another_format_are_read_and_not_written(format):
    rows = [[5.0, 6.0, 0.0], [7.0, 0.0, 8.0]]  # one entry more than the weight
    w = sparse()
    other = torch.tensor(rows) if format == gs.Dense() else sparse(format, rows)
    torch._foreach_addcmul_([w], [other], [other], value=1.0)
    assert w.values().tolist() == [38.0, 52.0, 68.0]
    assert (other if format == gs.Dense() else other.to_dense()).tolist() == rows


def test_in_place_returns_the_tensors_themselves():
    w = sparse()
    assert torch._foreach_mul_([w], 2.0)[0] is w


def test_a_fused_optimizer_brings_state_of_another_format_back():
    w, grad, moment = sparse(), sparse(gs.COO()), sparse(gs.COO(), [[0.0, 10.0, 0.0], [20.0, 0.0, 30.0]])
    torch._fused_sgd_(
        [w], [grad], [moment], weight_decay=0.0, momentum=0.5, lr=1.0, dampening=0.0, nesterov=False, maximize=False,
        is_first_step=False,
    )  # fmt: skip
    assert moment.format == gs.COO() and moment.values().tolist() == [7.0, 13.0, 19.0]  # 0.5 m + g
    assert w.values().tolist() == [-5.0, -10.0, -15.0]


def test_padding_is_cleared_after_what_does_not_keep_zeros():
    w = sparse(gs.ELL())
    torch._foreach_add_([w], 1.0)
    assert w.to_dense().tolist() == [[0.0, 3.0, 0.0], [4.0, 0.0, 5.0]]
    assert w._values.reshape(-1).tolist() == [3.0, 0.0, 4.0, 5.0]  # the second place of row 0 is padding


def test_the_decision_says_how_lists_are_run():
    in_place = choose(torch._foreach_mul_, ([sparse()], 2.0))
    assert (in_place.name, in_place.how) == ("_foreach_mul", "native") and "stored positions of the first" in repr(
        in_place
    )
    new = choose(torch._foreach_mul, ([sparse()], 2.0))
    assert new.how == "native" and "one tensor of the lists at a time" in new.reason


T = torch.ones(2)


@pytest.mark.parametrize(
    ("name", "operands", "want"),
    [
        ("mul", [2.0], True),
        ("mul", [T], True),
        ("mul", [math.inf], False),  # 0 * inf
        ("mul", [math.nan], False),
        ("mul", [torch.tensor(2.0)], False),  # it may hold inf, and nobody reads it
        ("add", [T], True),
        ("add", [T, 2.0], True),
        ("add", [T, math.inf], False),
        ("add", [1.0], False),
        ("sub", [1.0], False),
        ("sub", [T], True),
        ("div", [2.0], True),
        ("div", [0.0], False),
        ("div", [T], False),
        ("lerp", [T, 0.5], True),
        ("addcmul", [T, T], True),
        ("addcdiv", [T, T], False),  # 0 / 0
        ("sqrt", [], True),
        ("exp", [], False),
        ("mul", [None], False),
    ],
)
def test_what_keeps_padding_at_zero(name, operands, want):
    assert keeps_zeros(name, operands) is want


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD", "Adagrad"])
@pytest.mark.parametrize("format", [gs.CSR(), gs.CSC(), gs.ELL(), gs.BSR((2, 2))], ids=repr)
def test_a_fused_optimizer_leaves_a_dense_gradient_as_it_is(name, format):
    w = torch.nn.Parameter(sparse(format))
    grad = torch.randn(3, 2).t()  # with other strides
    w.grad, before = grad, grad.clone()
    optimizer = getattr(torch.optim, name)([w], lr=0.1, fused=True)
    optimizer.step()
    assert torch.equal(grad, before)
    dense = torch.nn.Parameter(torch.tensor(DENSE))
    dense.grad = before.contiguous()
    getattr(torch.optim, name)([dense], lr=0.1, fused=True).step()
    torch.testing.assert_close(w.detach().to_dense(), dense.detach() * w.mask())
