import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from gossamer.compiler.language.algebra import derivative, evaluate, needed, without
from gossamer.compiler.language.functions import FUNCTIONS
from gossamer.compiler.language.tree import Access, Const, Op

PUBLIC = [name for name, f in FUNCTIONS.items() if f.public or name in "+-*"]


@st.composite
def trees(draw, depth=3):
    """Trees over operands 0 .. 2."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([Access(0), Access(1), Access(2), Const(2.0)]))
    name = draw(st.sampled_from(PUBLIC))
    return Op(name, tuple(draw(trees(depth=depth - 1)) for _ in range(FUNCTIONS[name].arity)))


def worth(tree, values):
    """The value of a tree; that of numbers alone is a number."""
    return torch.as_tensor(evaluate(tree, values), dtype=torch.float64)


@given(trees(), st.frozensets(st.sampled_from([0, 1, 2])))
def test_what_is_left_where_operands_are_zero(tree, zero):
    values = [
        torch.zeros((), dtype=torch.float64) if k in zero else torch.tensor(0.7, dtype=torch.float64) for k in range(3)
    ]
    expected = worth(tree, values)
    assume(expected.isfinite())  # 0 * nan: what is not stored stays 0, which dense arithmetic doesn't know
    assert torch.allclose(worth(without(tree, zero), values), expected)


@given(trees())
def test_what_is_needed_for_a_value_other_than_zero(tree):
    points = needed(tree, frozenset({0, 1, 2}))
    for present in range(8):
        here = frozenset(k for k in range(3) if present >> k & 1)
        values = [torch.tensor(0.7 if k in here else 0.0, dtype=torch.float64) for k in range(3)]
        value = worth(tree, values)
        if value.isfinite() and value != 0:  # then one of the sets must be there
            assert any(point <= here for point in points)


@pytest.mark.parametrize(
    "name", [n for n, f in FUNCTIONS.items() if n not in ("sign", "positive", "above") and n[0] not in "<>=!"]
)
def test_slopes(name):
    tree = Op(name, tuple(Access(k) for k in range(FUNCTIONS[name].arity)))
    values = [torch.tensor(0.6 + 0.3 * k, dtype=torch.float64, requires_grad=True) for k in range(3)]
    grads = torch.autograd.grad(evaluate(tree, values), values, allow_unused=True)
    for k in range(FUNCTIONS[name].arity):
        assert worth(derivative(tree, k), values).item() == pytest.approx(0.0 if grads[k] is None else grads[k].item())
