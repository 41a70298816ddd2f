"""The last call of each expression: whatever differs from it goes the usual way, with the right result."""

import gc
import itertools

import pytest
import torch

import gossamer as gs
from gossamer.compiler.run import runtime
from gossamer.compiler.run.cache import PLANS
from gossamer.ops import warm

pytestmark = pytest.mark.skipif(not runtime.available(), reason="no C compiler")


@pytest.fixture(autouse=True)
def sparse_kernels():
    warm._LAST.clear()
    with gs.dense_from(None):
        yield


def matrix(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return gs.from_dense((torch.randn(13, 17) * (torch.rand(13, 17) < 0.3)).to(dtype), gs.CSR())


def close(a, x, expression="ij,j->i"):
    out = gs.einsum(expression, a, x)
    torch.testing.assert_close(out, torch.einsum(expression, a.to_dense(), x))
    return out


def test_a_repeated_call_is_remembered():
    a, x = matrix(), torch.randn(17)
    for _ in range(3):
        close(a, x)
    assert warm.last("ij,j->i", (a, x)) is not None
    close(a * 2, torch.randn(17))
    assert warm.last("ij,j->i", (a * 2, torch.randn(17))) is not None


@pytest.mark.parametrize(
    "other",
    [
        lambda a, x: (matrix(1), x),
        lambda a, x: (a, torch.randn(34)[::2]),
        lambda a, x: (a.double(), x.double()),
        lambda a, x: (a, torch.nn.Parameter(x)),
        lambda a, x: (gs.SparseTensor(torch.stack([a.values()] * 2, 1)[:, 0], a.structure), x),
        lambda a, x: (a.to_format(gs.CSC()), x),
    ],
    ids=["pattern", "stride", "dtype", "parameter", "values", "format"],
)
def test_what_differs_goes_the_usual_way(other):
    a, x = matrix(), torch.randn(17)
    for _ in range(3):
        close(a, x)
    b, y = other(a, x)
    assert warm.last("ij,j->i", (b, y)) is None
    close(b, y)
    close(a, x)


def test_gradients_and_transforms():
    a, x = matrix(), torch.randn(17)
    for _ in range(3):
        close(a, x)
    y = x.clone().requires_grad_()
    close(a, y).sum().backward()
    torch.testing.assert_close(y.grad, a.to_dense().sum(0))
    w = torch.nn.Parameter(a)
    gs.einsum("ij,j->i", w, x).sum().backward()
    torch.testing.assert_close(w.grad.to_dense(), x.expand(13, 17) * a.mask())
    with torch.no_grad():
        assert not gs.einsum("ij,j->i", w, y).requires_grad
    with gs.fallback("silent"):
        out = torch.func.vmap(lambda v: gs.einsum("ij,j->i", a, v))(torch.stack([x, 2 * x]))
    torch.testing.assert_close(out, torch.stack([a.to_dense() @ x, 2 * (a.to_dense() @ x)]))


def test_a_plan_that_was_dropped_and_a_setting_that_changed():
    a, x = matrix(), torch.randn(17)
    for _ in range(3):
        close(a, x)
    with gs.dense_from(0.0):
        assert warm.last("ij,j->i", (a, x)) is None
    for _ in range(3):
        close(a, x)
    PLANS.clear()
    gc.collect()
    assert warm.last("ij,j->i", (a, x)) is None
    close(a, x)


def test_the_cache_is_asked_now_and_then(monkeypatch):
    """So that it knows that the plan is used; and there are not too many expressions."""
    a, x = matrix(), torch.randn(17)
    close(a, x)
    close(a, x)
    close(a, x)
    place = warm._place("ij,j->i", (a, x))
    warm._LAST[place] = warm._LAST[place]._replace(left=itertools.repeat(True, 3))
    assert sum(warm.last("ij,j->i", (a, x)) is None for _ in range(4)) == 1
    monkeypatch.setattr(warm, "_MOST", 2)
    for letter in "klmnop":
        for _ in range(3):
            close(a, x, f"i{letter},{letter}->i")
    assert len(warm._LAST) <= 2


def test_values_that_were_not_contiguous_at_first():
    a, x = matrix(), torch.randn(17)
    b = gs.SparseTensor(torch.stack([a.values()] * 2, 1)[:, 0], a.structure)
    for _ in range(3):
        close(b, x)
    for _ in range(3):
        close(a, x)


def test_sums_of_one_pattern():
    a, b = matrix(), matrix() * 3
    b = gs.SparseTensor(b.values(), a.structure)
    for _ in range(3):
        torch.testing.assert_close(gs.einsum("ij,ij->", a, b), (a.to_dense() * b.to_dense()).sum())


def test_patterns_and_shapes_in_turn():
    """Each pattern is remembered; of several shapes one is, and calls with another do not take its place each time."""
    matrices, x = [matrix(seed) for seed in range(3)], torch.randn(17)
    for _ in range(4):
        for a in matrices:
            close(a, x)
    assert all(warm.last("ij,j->i", (a, x)) is not None for a in matrices)
    wide, narrow = torch.randn(17, 5), torch.randn(17, 2)
    for _ in range(4):
        close(matrices[0], wide, "ij,jk->ik")
        close(matrices[0], narrow, "ij,jk->ik")
    known = [warm.last("ij,jk->ik", (matrices[0], y)) is not None for y in (wide, narrow)]
    assert sorted(known) == [False, True]


def test_gradients_are_remembered_too():
    a, d = matrix(), torch.randn(13, 5)
    x = torch.randn(17, 5, requires_grad=True)
    for _ in range(4):
        gs.einsum("ij,jk->ik", a, x)
    out = warm.last("ij,jk->ik", (a, x))
    assert out.requires_grad and warm.last("ij,jk->ik", (a, x.detach())) is None
    torch.testing.assert_close(torch.autograd.grad(out, x, d)[0], a.to_dense().t() @ d)
    with torch.no_grad():
        assert not gs.einsum("ij,jk->ik", a, x).requires_grad
    again = torch.autograd.grad(gs.einsum("ij,jk->ik", a, x), x, d, create_graph=False)[0]
    torch.testing.assert_close(again, a.to_dense().t() @ d)


def test_a_gradient_that_is_wanted_at_every_position_from_now_on():
    w, x = torch.nn.Parameter(matrix()), torch.randn(17, 3)
    for _ in range(4):
        gs.einsum("ij,jk->ik", w, x).sum().backward()
    w.grad = None
    w.grad_format = gs.Dense()
    gs.einsum("ij,jk->ik", w, x).sum().backward()
    grad = w.grad.to_dense() if isinstance(w.grad, gs.SparseTensor) else w.grad
    torch.testing.assert_close(grad, x.sum(1).expand(13, 17))


def test_one_operand_twice():
    a = matrix()
    for _ in range(4):
        torch.testing.assert_close(gs.einsum("ij,ij->", a, a), a.to_dense().square().sum())
    assert warm.last("ij,ij->", (a, a)) is not None


def test_without_torchs_guards_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "TensorGuards", None)
    warm._LAST.clear()
    a, x = gs.from_dense(torch.eye(4), gs.CSR()), torch.randn(4)
    for _ in range(4):
        torch.testing.assert_close(gs.einsum("ij,j->i", a, x), x)
    assert not warm._LAST
