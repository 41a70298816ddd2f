"""gs.einsum on a GPU: compiled kernels, right for formats, types and gradients, and the same bits every time."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import interpret, parse

pytestmark = pytest.mark.gpu
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
UNIT = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-20, torch.float64: 2.0**-45}


@pytest.fixture(autouse=True)
def no_fallback():
    with gs.fallback("error"), gs.dense_from(None):
        yield


def skewed(rows, cols, format=None, dtype=torch.float32):
    """A matrix with empty rows, and one with every entry."""
    dense = torch.randn(rows, cols, device="cuda") * (torch.rand(rows, cols, device="cuda") < 0.05)
    dense[rows // 2], dense[:2] = torch.randn(cols, device="cuda"), 0
    return gs.from_dense(dense.to(dtype), format or gs.CSR())


def right(expression, *tensors, **options):
    """Compare the result and all gradients with dense tensors in float64."""
    dtype = tensors[0].dtype
    leaves = [torch.nn.Parameter(t) if isinstance(t, gs.SparseTensor) else t.clone().requires_grad_() for t in tensors]
    exact = [t.to_dense().double().requires_grad_() for t in tensors]
    out = gs.einsum(expression, *leaves, **options)
    expected = interpret(parse(expression, [t.dim() for t in tensors]), exact)
    size = interpret(parse(expression, [t.dim() for t in tensors]), [t.detach().abs() for t in exact])
    if isinstance(out, gs.SparseTensor):
        expected = expected * out.mask()
    got = out.to_dense() if isinstance(out, gs.SparseTensor) else out
    assert got.dtype == dtype
    assert bool(((got.double() - expected).abs() <= 4 * UNIT[dtype] * (size + 1)).all())
    arriving = torch.randn_like(expected)
    found = torch.autograd.grad(got, leaves, arriving.to(dtype))
    wanted = torch.autograd.grad(expected, exact, arriving)
    for t, mine, other in zip(tensors, found, wanted, strict=True):
        other = other * t.mask() if isinstance(t, gs.SparseTensor) else other
        error = (mine.to_dense().double() - other).norm() / (other.norm() + 1e-30)
        assert error < 8 * UNIT[dtype], (expression, float(error))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 3, 8, 33, 128])
def test_products(dtype, width):
    a = skewed(301, 1200, dtype=dtype)
    x = torch.randn(1200, width, device="cuda", dtype=dtype)
    right("ij,jk->ik", a, x)
    right("ij,j->i", a, x[:, 0])
    right("ij,ik->jk", a, torch.randn(301, width, device="cuda", dtype=dtype))
    q, k = torch.randn(301, width, device="cuda", dtype=dtype), torch.randn(1200, width, device="cuda", dtype=dtype)
    right("ij,id,jd->ij", a, q, k)


@pytest.mark.parametrize("format", [gs.COO(), gs.CSC(), gs.BSR((4, 4)), gs.Masked()], ids=str)
def test_formats(format):
    a = skewed(64, 80, format)
    right("ij,jk->ik", a, torch.randn(80, 16, device="cuda"))
    right("ij->i", a)
    right("ij->j", a)


def test_other_loops():
    a = skewed(301, 1200)
    right("ij->", a)
    right("square(ij)->j", a)
    right("ij,i->ij", a, torch.randn(301, device="cuda"))
    right("nm,mk,ko->no", a, torch.randn(1200, 32, device="cuda"), torch.randn(32, 8, device="cuda"))
    t = gs.from_dense(torch.randn(30, 40, 50, device="cuda") * (torch.rand(30, 40, 50, device="cuda") < 0.05), gs.CSF())
    right("ijk,jr,kr->ir", t, torch.randn(40, 16, device="cuda"), torch.randn(50, 16, device="cuda"))
    b, c = skewed(301, 40), skewed(40, 1200)
    exact = (b.to_dense().double() @ c.to_dense().double()) * a.to_dense()
    torch.testing.assert_close(gs.einsum("ij,ik,kj->ij", a, b, c).to_dense().double(), exact, rtol=1e-4, atol=1e-4)


def test_rows_in_registers_and_steps_on_dense_tensors():
    for width in (20, 64, 130):
        right("ij,id,jd->ij", skewed(300, 400), *(torch.randn(n, width, device="cuda") for n in (300, 400)))
        right("ij,id,jd->i", skewed(300, 400), *(torch.randn(n, width, device="cuda") for n in (300, 400)))
    ones = gs.mask(skewed(1000, 900))
    x = torch.randn(900, 128, device="cuda")
    out = gs.einsum("sum(ij * jk) / sum(il) -> ik", ones, x, ones)
    expected = torch.nan_to_num((ones.to_dense() @ x) / ones.to_dense().sum(1, keepdim=True))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def test_sparse_results():
    a, b = skewed(301, 400), skewed(400, 200)
    right("ij,jk->ik", a, b)
    right("ij + ij -> ij", a, skewed(301, 400, gs.COO()))
    right("ij->ji", a)
    assert gs.einsum("ij,jk->ik", a, b).format == gs.CSR()


def test_a_trace():
    a, x = skewed(301, 400), torch.randn(400, 32, device="cuda")
    compiled = torch.compile(lambda a, x: gs.einsum("ij,jk->ik", a, x.relu()))
    torch.testing.assert_close(compiled(a, x), a.to_dense() @ x.relu(), rtol=1e-4, atol=1e-3)


def test_what_is_not_aligned():
    a, x = skewed(100, 200), torch.randn(200, 67, device="cuda")[:, 3:67]
    torch.testing.assert_close(gs.einsum("ij,jk->ik", a, x), a.to_dense() @ x, rtol=1e-4, atol=1e-4)
    y = torch.randn(64 * 200 + 1, device="cuda")[1:].view(200, 64)
    gs.einsum("ij,jk->ik", a, torch.randn(200, 64, device="cuda"))
    torch.testing.assert_close(gs.einsum("ij,jk->ik", a, y), a.to_dense() @ y, rtol=1e-4, atol=1e-4)


def test_the_same_bits_every_time():
    a, x = skewed(500, 70_000), torch.randn(70_000, 32, device="cuda")
    first = gs.einsum("ij,jk->ik", a, x)
    assert all(torch.equal(gs.einsum("ij,jk->ik", a, x), first) for _ in range(5))
    assert all(torch.equal(gs.einsum("ij->", a), gs.einsum("ij->", a)) for _ in range(5))


def test_attention():
    mask = gs.mask(skewed(300, 300) + gs.from_dense(torch.eye(300, device="cuda"), gs.CSR()))
    q, k, v = (torch.randn(300, 64, device="cuda", requires_grad=True) for _ in range(3))

    def ours():
        return gs.einsum("ij,jd->id", torch.softmax(gs.einsum("ij,id,jd->ij", mask, q, k), -1), v)

    def dense():
        return (q @ k.t()).masked_fill(~mask.mask(), -torch.inf).softmax(-1) @ v

    torch.testing.assert_close(ours(), dense(), rtol=1e-3, atol=1e-4)
    grads = (torch.autograd.grad(way().square().sum(), (q, k, v)) for way in (ours, dense))
    for mine, other in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-2)


def test_graphs():
    a, x = skewed(500, 700), torch.randn(700, 32, device="cuda")
    gs.einsum("ij,jk->ik", a, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gs.einsum("ij,jk->ik", a, x)
    x.copy_(torch.randn(700, 32))
    graph.replay()
    torch.testing.assert_close(out, a.to_dense() @ x, rtol=1e-4, atol=1e-3)
