"""Steps on dense tensors: which have a kernel on a GPU."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import parse
from gossamer.compiler.gpu import elementwise
from gossamer.compiler.language.types import types
from gossamer.ops.dense_steps import elementwise_step
from tests.compiler.gpu.emulated import gpu, needs_a_compiler

pytestmark = [needs_a_compiler, pytest.mark.usefixtures("gpu")]
__all__ = ["gpu"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(elementwise, "_ENTRIES", 1)


def step(expression, *tensors, out=None):
    statement = parse(expression, [t.dim() for t in tensors])
    return elementwise_step(statement, tensors, out, types(statement, [t.dtype for t in tensors]))


def test_a_quotient_and_its_gradient():
    a, b = torch.randn(5, 8, dtype=torch.float64, requires_grad=True), torch.rand(5, dtype=torch.float64) + 1
    compute = step("ik / i -> ik", a, b)
    torch.testing.assert_close(compute([a, b]), a / b[:, None])
    assert torch.autograd.gradcheck(lambda x, y: compute([x, y]), (a, b.requires_grad_()))


def test_what_is_left_to_torch():
    a, b = torch.randn(5, 8), torch.randn(5)
    assert step("ik,i->ik", a, b) is None  # a product
    assert step("exp(ik) -> i", a) is None  # a sum
    assert step("ik / i -> ik", a.bfloat16(), b.bfloat16()) is None
    assert step("ik / i -> ik", a, torch.randn(1)) is None  # it broadcasts
    assert step("ik / i -> ik", a, b, out=gs.CSR()) is None
    with torch.no_grad():
        assert torch.func.vmap(lambda x: x * (step("ik / i -> ik", x, b) is None))(a[None]).equal(a[None])
