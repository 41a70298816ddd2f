"""Steps on dense tensors in one kernel, in the emulator: against torch's operators, forward and backward."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.gpu import elementwise
from gossamer.compiler.language.notation import parse
from gossamer.compiler.language.tree import show
from gossamer.compiler.run.cache import PLANS
from tests.compiler.gpu.emulated import gpu, needs_a_compiler, right, sparse

pytestmark = [needs_a_compiler, pytest.mark.usefixtures("gpu")]
__all__ = ["gpu"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Take small tensors too."""
    monkeypatch.setattr(elementwise, "_ENTRIES", 1)


def plans():
    return [e.value for e in PLANS._entries.values() if isinstance(e.value, elementwise.ElementwisePlan)]


@pytest.mark.parametrize("width", [16, 7])
def test_quotients_of_sums(width):
    """A row without entries has 0 / 0, which is 0, and a gradient that is finite."""
    right("sum(ij * jk) / sum(il) -> ik", gs.mask(sparse(11, 12)), torch.randn(12, width), gs.mask(sparse(11, 9)))
    assert len(plans()) >= 2  # forward, and gradients


def test_one_index_and_three():
    right("exp(sum(ij)) -> i", sparse(11, 12))
    right("sum(ij * bjk) / sum(il) -> bik", gs.mask(sparse(5, 6)), torch.randn(3, 6, 8), gs.mask(sparse(5, 7)))


def test_values_that_are_not_aligned():
    plan = elementwise.ElementwisePlan
    a, b = torch.randn(6 * 16 + 1)[1:].view(6, 16), torch.randn(6)
    args = [elementwise.Arg(v, None, tuple(t.shape), t.stride()) for v, t in ((("i", "k"), a), (("i",), b))]
    statement = parse("ik / i -> ik", (2, 1))
    made = plan(statement, args, {"i": 6, "k": 16}, torch.float32)
    torch.testing.assert_close(made([a, b])[0], a / b[:, None])
    assert "one launch" in made.explain() and made.nbytes() == 0


def test_what_it_takes():
    sizes, args = {"i": 8, "k": 8}, [elementwise.Arg(("i", "k"), None, (8, 8), (8, 1))]
    assert elementwise.takes(parse("exp(ik) -> ik", (2,)), args, sizes, torch.float32)
    turned = [args[0]._replace(stride=(1, 8))]
    assert not elementwise.takes(parse("exp(ik) -> ik", (2,)), turned, sizes, torch.float32)
    assert not elementwise.takes(parse("exp(ik) -> ik", (2,)), args, sizes, torch.int32)
    assert not elementwise.takes(parse("max: exp(ik) -> i", (2,)), args, sizes, torch.float32)


def test_grids_have_limits():
    """Columns are shared by blocks along an axis of the grid that takes 65,535 of them."""
    for shape, taken in (((2, 2_000_000), True), ((2, 3_000_000), False), ((3_000_000,), True)):
        names = ("i", "k")[: len(shape)]
        strides = (shape[-1], 1)[-len(shape) :]
        args, sizes = [elementwise.Arg(names, None, shape, strides)], dict(zip(names, shape, strict=True))
        statement = parse(f"exp({''.join(names)}) -> {''.join(names)}", (len(shape),))
        assert elementwise.takes(statement, args, sizes, torch.float32) == taken


def test_safe_quotients():
    s = parse("i / j -> ij", (1, 1))
    assert show(elementwise.quotients(s.tree), s.inputs) == "A[i] / (B[j] + (A[i] == 0) * (B[j] == 0))"
    s = parse("i / 2 -> i", (1,))
    assert elementwise.quotients(s.tree) == s.tree
