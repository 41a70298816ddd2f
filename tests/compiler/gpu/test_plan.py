"""einsum on a GPU, in the emulator: against the interpreter over expressions, formats, types and sizes."""

import gc
import weakref

import pytest
import torch

import gossamer as gs
from gossamer.compiler import parse
from gossamer.compiler.gpu.plan import GpuPlan
from gossamer.compiler.run.cache import PLANS
from gossamer.ops.plans_of import plan_of
from tests.compiler.gpu.emulated import arg, dense, gpu, needs_a_compiler, right, sparse

pytestmark = [needs_a_compiler, pytest.mark.usefixtures("gpu")]
__all__ = ["gpu"]
gs.function("leaky", "where(x > 0, x, 0.2 * x)")
GAT = "sum(ij * exp(leaky(i + j)) * jk) / sum(il * exp(leaky(i + l))) -> ik"


def test_by_hand():
    a = gs.from_dense(torch.tensor([[0.0, 3.0], [0.0, 0.0], [4.0, 5.0]]), gs.CSR())
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]])
    expected = [[30.0, 60.0, 90.0, 120.0], [0.0] * 4, [54.0, 108.0, 162.0, 216.0]]
    assert gs.einsum("ij,jk->ik", a, x).tolist() == expected
    assert gs.einsum("ij,j->i", a, torch.tensor([1.0, 10.0])).tolist() == [30.0, 0.0, 54.0]
    assert gs.einsum("ij,id,jd->ij", a, torch.ones(3, 4), x).values().tolist() == [300.0, 40.0, 500.0]


@pytest.mark.parametrize(
    ("expression", "shapes"),
    [
        ("nm,mk->nk", [(20, 32)]),
        ("row col, col -> row", [(20,)]),
        ("ij,id,jd->ij", [(13, 16), (20, 16)]),
        ("ij->", []),
        ("square(ij)->j", []),
        ("ij,i->ij", [(13,)]),
        ("mean: ij->i", []),
    ],
)
def test_one_sparse_operand(expression, shapes):
    right(expression, sparse(13, 20), *(torch.randn(shape) for shape in shapes))


def test_three_dimensions_and_batches():
    right("ijk,jr,kr->ir", sparse(5, 6, 7, format=gs.CSF()), torch.randn(6, 16), torch.randn(7, 16))
    right("ij,bjk->bik", sparse(13, 20), torch.randn(2, 20, 8), gradients=False)
    right("ij,jk->ki", sparse(13, 20), torch.randn(8, 20).t(), gradients=False)
    right("max: ij->i", sparse(13, 20), gradients=False)


def test_graph_attention():
    edges = gs.mask(sparse(11, 11))
    source, target, x = (torch.randn(shape, requires_grad=True) for shape in ((11,), (11,), (11, 16)))
    out = gs.einsum(GAT, edges, source, target, x, edges, source, target)
    scores = torch.nn.functional.leaky_relu(source[:, None] + target, 0.2).masked_fill(~edges.mask(), -torch.inf)
    expected = scores[1:].softmax(1) @ x
    torch.testing.assert_close(out[1:], expected)
    assert not out[0].any()  # it has no edges
    found, wanted = (torch.autograd.grad(y.square().sum(), (source, target, x)) for y in (out, expected))
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("format", [gs.COO(), gs.CSC(), gs.BSR((4, 5)), gs.Masked()], ids=str)
def test_formats(format):
    a = sparse(12, 20, format=format)
    right("ij,jk->ik", a, torch.randn(20, 32), gradients=False)
    right("ij->j", a, gradients=False)
    right("ij,id,jd->ij", a, torch.randn(12, 16), torch.randn(20, 16), gradients=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64], ids=str)
def test_types(dtype):
    a = sparse(13, 20, dtype=dtype)
    x = torch.randint(-4, 5, (20, 16)).to(dtype)
    for expression, other in (("ij,jk->ik", x), ("ij,j->i", x[:, 0].contiguous())):
        out = gs.einsum(expression, a, other)
        exact = torch.einsum(expression, a.to_dense().double(), other.double())
        size = torch.einsum(expression, a.to_dense().double().abs(), other.double().abs())
        unit = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
        assert out.dtype == dtype and bool(((out.double() - exact).abs() <= (unit + 20 * 2.0**-23) * size).all())


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (1, 1), (3, 0), (2, 37)])
def test_sizes(rows, columns):
    a = sparse(rows, columns, density=0.5)
    right("ij->i", a, gradients=False)
    right("ij->", a, gradients=False)
    for width in (0, 3, 33):
        right("ij,jk->ik", a, torch.randn(columns, width), gradients=False)
        right("ij,id,jd->ij", a, torch.randn(rows, width), torch.randn(columns, width), gradients=False)


def test_no_entries():
    a = gs.from_dense(torch.zeros(5, 6), gs.CSR())
    assert not gs.einsum("ij,jk->ik", a, torch.randn(6, 32)).any() and gs.einsum("ij->", a) == 0


@pytest.mark.parametrize(("expression", "shape"), [("ij,jk->ik", (5000, 32)), ("ij,j->i", (5000,))])
def test_long_rows_are_cut(expression, shape):
    a, x = sparse(3, 5000, density=0.01), torch.randn(shape)
    statement = parse(expression, (2, len(shape)))
    sizes = {"i": 3, "j": 5000, "k": 32}
    plan = GpuPlan(statement, [arg("ij", a), arg("jk"[: len(shape)], x)], sizes, torch.float32, "dense")
    assert len(plan.steps) > 1 and plan.steps[-1].slots == 0 and "added up in order" in plan.explain()
    first, _ = plan([a.values(), x])
    again, _ = plan([a.values(), x])
    assert torch.equal(first, again)
    torch.testing.assert_close(first, dense(a) @ x, rtol=1e-4, atol=1e-3)


def test_values_that_are_not_aligned():
    a, x = sparse(5, 7), torch.randn(7 * 32 + 1)[1:].view(7, 32)
    gs.einsum("ij,jk->ik", a, x.clone())
    torch.testing.assert_close(gs.einsum("ij,jk->ik", a, x), dense(a) @ x)


def test_other_sparse_operands_are_searched():
    a, b, c = sparse(13, 20), sparse(13, 6), sparse(6, 20)
    right("ij,ik,kj->ij", a, b, c)
    right("ij,ij->i", a, sparse(13, 20, density=0.6), gradients=False)
    right("ij,jk->ik", a, sparse(20, 5), gradients=False, out=gs.Dense())


def test_added_to_what_is_there():
    a, total = sparse(4, 4), torch.ones(4)
    gs.einsum("ij->i", a, out=total, beta=1.0)
    torch.testing.assert_close(total, a.to_dense().sum(1) + 1)
    assert gs.einsum("max: ij -> i", a, fill=-torch.inf)[0] == -torch.inf


def test_plans_hold_no_structure():
    a, b = sparse(5, 6), sparse(6, 4)
    alive = [weakref.ref(t.structure) for t in (a, b)]
    gs.einsum("ij,jk->ik", a, torch.randn(6, 32))
    gs.einsum("ij,jk->ik", a, b)
    gs.einsum("ij,ij->i", a, sparse(5, 6, density=0.6))
    assert len(PLANS) >= 3
    del a, b
    gc.collect()
    assert not any(structure() for structure in alive) and len(PLANS) == 0


def test_bytes_of_a_plan_are_its_own():
    a = sparse(50, 60)
    plan = plan_of("ij,jk->ik", [a, torch.randn(60, 32)])
    assert 0 < plan.nbytes() < 4 * 4 * 60  # where pieces begin and end, their rows, their slots
