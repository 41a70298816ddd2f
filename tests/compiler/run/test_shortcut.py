"""The shortest way through a plan: the same results as the usual way."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.run import runtime
from gossamer.compiler.run.shortcut import shortcut
from gossamer.ops.plans_of import plan_of

pytestmark = pytest.mark.skipif(not runtime.available(), reason="no C compiler")


@pytest.mark.parametrize("expression", ["ij,j->i", "max: ij,j->i", "ij * square(j) -> i"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_the_same_as_the_usual_way(expression, dtype):
    a = gs.from_dense((torch.randint(-9, 9, (7, 11)) * (torch.rand(7, 11) < 0.4)).to(dtype), gs.CSR())
    x = torch.randint(-9, 9, (11,)).to(dtype)
    plan = plan_of(expression, [a, x])
    assert plan.quick and plan.shortcut is None
    found = shortcut(plan)([a.values(), x])
    plan.quick = False
    usual = plan([a.values(), x])[0]
    assert torch.equal(found, usual) and found.dtype == usual.dtype and found.shape == usual.shape


def test_a_plan_for_another_pattern_has_its_own():
    """A template copies a plan, and its shortcut has the pointers of the first pattern."""
    x = torch.randn(40)
    with gs.dense_from(None):
        for seed in range(4):
            torch.manual_seed(seed)
            a = gs.from_dense(torch.randn(30, 40) * (torch.rand(30, 40) < 0.1), gs.CSR())
            for _ in range(2):
                torch.testing.assert_close(gs.einsum("st,t->s", a, x), a.to_dense() @ x)
