"""The cache of plans: each part of a key makes another plan, and nothing is kept for structures that are gone."""

import gc
import weakref

import pytest
import torch

import gossamer as gs
from gossamer.compiler.run.cache import PLANS
from gossamer.ops.plans_of import plan_of

PRODUCT = "ik,kj->ij"


def sparse(rows=20, cols=30, format=None, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, cols, generator=generator)
    return gs.from_dense((x * (x < 0.2)).to(dtype), format or gs.CSR())


def test_each_part_of_a_key_makes_another_plan():
    a, x = sparse(), torch.randn(30, 8)
    base = plan_of(PRODUCT, [a, x])
    assert plan_of(PRODUCT, [a, torch.randn(30, 8)]) is base  # values are no part of it
    others = {
        "dtype": plan_of(PRODUCT, [a.double(), x.double()]),
        "shape": plan_of(PRODUCT, [a, torch.randn(30, 9)]),
        "strides": plan_of(PRODUCT, [a, torch.randn(8, 30).t()]),
        "structure": plan_of(PRODUCT, [sparse(), x]),
        "format": plan_of(PRODUCT, [sparse(format=gs.CSC()), x]),
        "statement": plan_of("ik,kj->ji", [a, x]),
        "result": plan_of(PRODUCT, [a, x], gs.CSR()),
    }
    assert base not in others.values() and len({id(p) for p in others.values()}) == len(others)


@pytest.mark.parametrize(
    "change",
    {
        "dtype": lambda a, x: (a.double(), x.double(), {}),
        "shape": lambda a, x: (a, torch.cat([x, x], 1), {}),
        "strides": lambda a, x: (a, x.t().contiguous().t(), {}),
        "format": lambda a, x: (a.to_format(gs.CSC()), x, {}),
        "result": lambda a, x: (a, x, {"out": gs.COO()}),
        "pattern": lambda a, x: (sparse(seed=1), x, {}),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_call_after_another_is_not_computed_by_its_plan(change):
    a, x = sparse(), torch.randn(30, 8)
    for _ in range(2):  # the second call takes the short way
        gs.einsum(PRODUCT, a, x)
        other, y, options = change[1](a, x)
        got = gs.einsum(PRODUCT, other, y, **options)
        got = got.to_dense() if isinstance(got, gs.SparseTensor) else got
        want = other.to_dense() @ y
        assert got.dtype == want.dtype and torch.allclose(got, want, atol=30 * 2**-23)


def test_a_device_without_kernels_does_not_use_the_plan_of_another():
    a, x = sparse(), torch.randn(30, 8)
    gs.einsum(PRODUCT, a, x)
    got = gs.einsum(PRODUCT, a.to("meta"), x.to("meta"))
    assert got.device.type == "meta" and got.shape == (20, 8)


def test_threads_share_a_plan_and_make_the_same_numbers():
    a, x = sparse(400, 300), torch.randn(300, 64)
    before = torch.get_num_threads()
    made = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            made.append((plan_of(PRODUCT, [a, x]), gs.einsum(PRODUCT, a, x)))
    finally:
        torch.set_num_threads(before)
    assert all(plan is made[0][0] and torch.equal(y, made[0][1]) for plan, y in made)


def test_the_density_from_which_dense_wins_is_part_of_a_call():
    a, x = gs.from_dense(torch.rand(40, 40), gs.CSR()), torch.randn(40, 40)
    with gs.dense_from(None):
        gs.einsum(PRODUCT, a, x)
        kept = len(PLANS)
    gs.einsum(PRODUCT, a, x)  # by torch: the short way of the call before is not taken
    assert len(PLANS) == kept


def test_a_fixed_operand_keeps_nothing_of_those_that_came_by():
    a = sparse(50, 50, seed=1)
    gc.collect()
    PLANS.clear()
    for seed in range(20):
        b = sparse(50, 50, seed=seed)
        gs.einsum(PRODUCT, a, b)
    gone, kept = weakref.ref(b.structure), len(PLANS)
    del b
    gc.collect()
    assert gone() is None and kept <= 2 and len(PLANS) == 0 and PLANS.nbytes == 0


def test_a_result_with_the_pattern_of_an_operand_has_its_structure():
    for format in (gs.CSR(), gs.Masked()):
        a = sparse(format=format)
        for _ in range(2):
            assert gs.einsum("ij,i->ij", a, torch.ones(20)).structure is a.structure


def test_plans_are_bounded_by_bytes(monkeypatch):
    PLANS.clear()
    monkeypatch.setattr(PLANS, "limit", 1 << 19)
    a = sparse(format=gs.COO())
    for n in range(1, 150):
        gs.einsum(PRODUCT, a, torch.ones(30, n))
        assert PLANS.nbytes <= PLANS.limit


def test_a_plan_explains_itself_when_its_operands_are_gone():
    plan = plan_of(PRODUCT, [sparse(), torch.randn(30, 8)])
    gc.collect()
    assert "CSR" in plan.explain() and "walked as it is stored" in plan.explain()
