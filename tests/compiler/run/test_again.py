"""A repeated call in C: the results of the plan, ordinary tensors, and None for whatever is not like before."""

import os
import subprocess
import sys
import threading

import pytest
import torch

import gossamer as gs
from gossamer.compiler.run import runtime
from gossamer.compiler.run.again import again, packed
from gossamer.ops import warm
from gossamer.ops.plans_of import plan_of

pytestmark = pytest.mark.skipif(not runtime.available() or again() is None, reason="no C compiler")


def matrix(rows=13, cols=17, dtype=torch.float32):
    dense = (torch.randint(-9, 9, (rows, cols)) * (torch.rand(rows, cols) < 0.3)).to(dtype)
    return gs.from_dense(dense, gs.CSR())


def call(plan, *tensors):
    looks = tuple(warm._look(t, slot) for t, slot in zip(tensors, plan.value_slots, strict=True))
    return lambda *given: again()(packed(plan), looks, given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("expression", ["ij,j->i", "max: ij,j->i", "ij * square(j) -> i", "ij + j -> i"])
def test_the_same_as_the_plan(expression, dtype):
    a, x = matrix(dtype=dtype), torch.randint(-9, 9, (17,)).to(dtype)
    plan = plan_of(expression, [a, x])
    out, expected = call(plan, a, x)(a, x), plan([a.values(), x])[0]
    assert type(out) is torch.Tensor and out.dtype is expected.dtype and not out.requires_grad
    assert out.shape == expected.shape and out.stride() == expected.stride() and torch.equal(out, expected)
    out.resize_(1000).fill_(1)  # memory of torch's own
    assert out.sum() == 1000


def test_plans_that_need_more():
    a, x = matrix(), torch.ones(17)
    assert packed(plan_of("ij,j->ij", [a, x])) is None  # a sparse result


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (0, 0)], ids=str)
def test_small_sizes(shape):
    a, x = matrix(*shape), torch.ones(shape[1])
    plan = plan_of("ij,j->i", [a, x])
    assert torch.equal(call(plan, a, x)(a, x), a.to_dense() @ x)


def test_results_that_are_filled_first():
    """Entries of a CSC matrix are added to a result that was set to zero."""
    a, x = matrix(500, 400).to_format(gs.CSC()), torch.ones(400)
    plan = plan_of("ij,j->i", [a, x])
    for _ in range(3):
        assert torch.equal(call(plan, a, x)(a, x), a.to_dense() @ x)


def test_none_if_an_operand_is_not_like_before():
    a, x = matrix(), torch.randn(17)
    f = call(plan_of("ij,j->i", [a, x]), a, x)
    assert f(a, x) is not None
    others = [(matrix(), x), (x, x), (a, a), (a,), (a, x, x), (), (a, 3), (None, x), (a, x.double())]
    others += [(a, torch.randn(18)), (a, torch.randn(34)[::2]), (a, torch.nn.Parameter(x)), (a, x.to("meta"))]
    assert [f(*other) for other in others] == [None] * len(others)
    assert f(a, x) is not None


def test_operands_are_only_compared_without_a_plan():
    """Slots are not used then: a plan of many arrays, whose result is sparse, once wrote beyond the arguments."""
    tensors = (matrix(), torch.randn(17))
    looks = tuple(warm._look(t, 1000) for t in tensors)
    assert again()(None, looks, tensors) is tensors
    assert again()(None, looks, tensors[::-1]) is None


def test_nothing_is_kept():
    a, x = matrix(), torch.randn(17)
    f = call(plan_of("ij,j->i", [a, x]), a, x)
    f(a, x)
    objects = [a, x, a._values, a._structure]
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(100):
        f(a, x), f(a, a), f(a)
    assert [sys.getrefcount(o) for o in objects] == before


def test_threads_of_torch_and_of_python():
    torch.manual_seed(0)
    a, x = gs.sparsify(torch.randn(2000, 1000), "90%", format=gs.CSR()), torch.randn(1000)
    expected, before = a.to_dense() @ x, torch.get_num_threads()
    plan = plan_of("ij,j->i", [a, x])
    f, wrong = call(plan, a, x), []
    assert not plan.alone

    def many():
        wrong.extend(1 for _ in range(50) if not torch.allclose(f(a, x), expected, atol=1e-3))

    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            workers = [threading.Thread(target=many) for _ in range(3)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
    finally:
        torch.set_num_threads(before)
    assert not wrong


def test_where_it_is_not_wanted():
    code = "from gossamer.compiler.run.again import again; print(again())"
    env = os.environ | {"GOSSAMER_DIRECT": "0"}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout == "None\n"
