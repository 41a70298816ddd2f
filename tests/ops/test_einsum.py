"""gs.einsum and gs.compile: what they return, in which format, and what they refuse."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.run.cache import DESIGNS, PLANS
from gossamer.ops.plans_of import plan_of
from tests.formats_under_test import ALL

FORMATS = [*ALL[:9], gs.formats.PackedCSR(), gs.formats.PackedNear()]


def tensor(shape, format, density=0.4, dtype=torch.float64):
    return gs.from_dense(torch.randn(shape, dtype=dtype) * (torch.rand(shape) < density), format)


def dense(t):
    return t.to_dense() if isinstance(t, gs.SparseTensor) else t


def right(expression, *tensors, out=None):
    got = gs.einsum(expression, *tensors, out=out)
    want = torch.einsum(expression, *map(dense, tensors))
    assert torch.allclose(dense(got), want), expression
    return got


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_products_in_every_format(format):
    a, x = tensor((7, 9), format), torch.randn(9, 70, dtype=torch.float64)
    right("ik,kj->ij", a, x)
    right("ik,jk->ij", a, x.T.contiguous())
    right("ik,k->i", a, x[:, 0])
    right("hi,ik->hk", torch.randn(5, 7, dtype=torch.float64), a)
    right("ij,ik,jk->ij", a, torch.randn(7, 33, dtype=torch.float64), torch.randn(9, 33, dtype=torch.float64))
    right("ik,kj->ij", a, tensor((9, 5), format))


def test_a_hand_checked_product():
    a = gs.from_dense(torch.tensor([[0.0, 3.0, 0.0], [4.0, 0.0, 5.0]]), gs.CSR())
    b = gs.from_dense(torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0]]), gs.CSC())
    c = gs.einsum("ik,kj->ij", a, b)
    assert c.format == gs.CSR()
    assert c.to_dense().tolist() == [[0.0, 6.0], [4.0, 5.0]]
    assert c.structure.arrays["pos1"].tolist() == [0, 1, 3] and c.structure.arrays["crd1"].tolist() == [1, 0, 1]


def test_formats_of_results():
    a, b = tensor((6, 8), gs.CSR()), tensor((8, 5), gs.COO())
    assert isinstance(gs.einsum("ik,kj->ij", a, torch.randn(8, 3).double()), torch.Tensor)
    assert gs.einsum("ik,kj->ij", a, b).format == gs.CSR()  # the first that has as many dimensions
    assert gs.einsum("kj,ik->ij", b, a).format == gs.COO()
    sampled = gs.einsum("ij,ik,jk->ij", a, torch.randn(6, 3).double(), torch.randn(8, 3).double())
    assert sampled.structure is a.structure  # a product keeps the pattern, not a copy of it
    assert gs.einsum("ij->ji", a).format == gs.CSR()
    assert type(gs.einsum("ij->i", a)) is torch.Tensor
    blocked = tensor((6, 8), gs.BSR((2, 2)))
    assert gs.einsum("ik,kj->ij", blocked, b).format == gs.COO()
    assert gs.einsum("ij,ij->ij", a, tensor((6, 8), gs.CSR())).nnz < a.nnz  # both have it, or it is not there
    for out in (gs.Dense(), gs.CSC(), gs.BSR((2, 2)), gs.Masked(), gs.ELL(), gs.DCSR(), gs.formats.PackedCSR()):
        made = right("ik,kj->ij", a, b, out=out)
        assert (made.format if isinstance(made, gs.SparseTensor) else gs.Dense()) == out


@pytest.mark.parametrize("source", FORMATS, ids=str)
def test_conversions(source):
    a = tensor((7, 9), source)
    for target in (gs.CSR(), gs.CSC(), gs.COO(), gs.BSR((2, 3))):
        b = gs.einsum("ij->ij", a, out=target)
        assert b.format == target and torch.equal(b.to_dense(), a.to_dense())
        b.structure.check(b.values())


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0), (1, 1), (1, 9)])
@pytest.mark.parametrize("format", [gs.CSR(), gs.COO(), gs.BSR((2, 2))], ids=str)
def test_empty_and_small(shape, format):
    for density in (0.0, 1.0):
        a = tensor(shape, format, density)
        right("ik,kj->ij", a, torch.randn(shape[1], 3, dtype=torch.float64))
        right("ij->ji", a)
        right("ij->", a)
        right("ij,ij->ij", a, a)


def test_eight_dimensions():
    shape = (2, 1, 3, 2, 1, 2, 3, 2)
    for format in (gs.COO(), gs.CSF(), gs.Format(*["dense", "compressed"] * 4, order=(3, 1, 0, 2, 7, 5, 6, 4))):
        t = tensor(shape, format, 0.2)
        right("abcdefgh->hgfedcba", t)
        right("abcdefgh,cg->abdefh", t, torch.randn(3, 3, dtype=torch.float64))


def test_broadcasting_and_ellipsis():
    a = tensor((3, 1, 5), gs.CSF())
    right("...ij,...jk->...ik", a, torch.randn(3, 5, 2, dtype=torch.float64))
    right("...ij,jk->...ik", a, torch.randn(5, 2, dtype=torch.float64))
    right("aij,aij->aj", a, tensor((3, 4, 5), gs.COO()))
    right("...->...", a)


def test_large_outputs_by_hash_and_wide_workspaces(monkeypatch):
    from gossamer.compiler.run import design

    a, b = tensor((20, 30), gs.CSR(), 0.2), tensor((30, 5000), gs.CSR(), 0.05)
    want = a.to_dense() @ b.to_dense()
    for small, large, kind in ((1 << 16, 1 << 22, "dense"), (1, 1 << 22, "wide"), (1, 2, "hash")):
        monkeypatch.setattr(design, "_SMALL", small)
        monkeypatch.setattr(design, "_LARGE", large)
        PLANS.clear()
        DESIGNS.clear()
        c = gs.einsum("ik,kj->ij", a, b)
        c.structure.check(c.values())
        assert torch.allclose(c.to_dense(), want)
        plan = plan_of("ik,kj->ij", [a, b])
        assert plan.kernel.program.workspace == kind
    DESIGNS.clear()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64])
def test_types(dtype):
    x = (torch.randn(20, 30) * 3 * (torch.rand(20, 30) < 0.3)).round().to(dtype)
    y = (torch.randn(30, 17) * 3).round().to(dtype)
    got = gs.einsum("ik,kj->ij", gs.from_dense(x, gs.CSR()), y)
    assert got.dtype == dtype
    assert torch.allclose(got.double(), (x.double() @ y.double()).to(dtype).double())


def test_half_precision_sums_in_single_precision():
    x = torch.full((1, 4096), 0.1, dtype=torch.bfloat16)
    got = gs.einsum("ij->i", gs.from_dense(x, gs.CSR()))
    assert got.item() == pytest.approx(4096 * x[0, 0].item(), rel=2**-8)  # summed in bfloat16 it would stop at 32


def test_a_nan_is_not_lost():
    a = gs.from_dense(torch.tensor([[1.0, float("nan")], [2.0, 3.0]]), gs.CSR())
    assert gs.einsum("max: ij->i", a).isnan().tolist() == [True, False]
    assert gs.einsum("relu(ij)->i", a).isnan().tolist() == [True, False]


def test_values_and_operands_that_are_not_contiguous():
    a = tensor((6, 8), gs.CSR())
    spread = torch.zeros(2 * a.nnz, dtype=torch.float64)[::2].copy_(a.values())
    b = gs.SparseTensor(spread, a.structure)
    x = torch.randn(3, 8, dtype=torch.float64).T
    with gs.dense_from(None):
        assert torch.allclose(gs.einsum("ik,kj->ij", b, x), a.to_dense() @ x)
        assert torch.allclose(gs.einsum("ik,kj->ij", b, x[:, :1].expand(8, 4)), a.to_dense() @ x[:, :1].expand(8, 4))


def test_a_result_with_too_many_places_is_refused():
    wide = gs.SparseTensor.from_arrays(
        gs.COO(), (2**40,), torch.ones(1), {"pos0": torch.tensor([0, 1]), "crd0": torch.tensor([5])}
    )
    with pytest.raises(ValueError, match="more elements than a 64-bit index can number"):
        gs.einsum("i,j->ij", wide, wide)


def test_a_trace_computes_on_dense_tensors():
    a = tensor((6, 8), gs.CSR())
    compiled = torch.compile(lambda x: torch.einsum("ij,jk->ik", a, x), backend="eager")
    x = torch.randn(8, 3, dtype=torch.float64)
    assert torch.allclose(compiled(x), a.to_dense() @ x)


def test_thread_count_does_not_change_results():
    a, b = tensor((300, 200), gs.CSR(), 0.2), tensor((200, 250), gs.CSR(), 0.2)
    x = torch.randn(200, 40, dtype=torch.float64)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            c = gs.einsum("ik,kj->ij", a, b)
            found.append((gs.einsum("ik,kj->ij", a, x), c.values(), c.structure.arrays["crd1"], gs.einsum("ij->", a)))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(p, q) for p, q in zip(found[0], other, strict=True))


def test_power_law_rows_on_several_threads():
    degree = (3000 / torch.arange(1, 501)).long().clamp(max=400)
    x = torch.zeros(500, 400, dtype=torch.float64)
    for i, d in enumerate(degree.tolist()):
        x[i, torch.randperm(400)[:d]] = torch.randn(d, dtype=torch.float64)
    a = gs.from_dense(x, gs.CSR())
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        with gs.dense_from(None):
            right("ik,kj->ij", a, torch.randn(400, 70, dtype=torch.float64))
    finally:
        torch.set_num_threads(before)


def test_errors():
    a, b = tensor((3, 4), gs.CSR()), torch.randn(5, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="index 'k' has size 4, but 5 in operand 1"):
        gs.einsum("ik,kj->ij", a, b)
    with pytest.raises(TypeError, match="one type and one device, not float32 on cpu, float64 on cpu"):
        gs.einsum("ik,kj->ij", a, torch.randn(4, 2))
    with pytest.raises(TypeError, match="must be tensors, not int"):
        gs.einsum("ij,->ij", a, 3)
    with pytest.raises(ValueError, match="names 3"):
        gs.einsum("ijk->i", a)
    with pytest.raises(ValueError, match="unknown level"):
        gs.einsum("ij->ij", a, out=gs.Format("dense", "squeezed"))
    with pytest.raises(ValueError, match="must be a number from 0"):
        gs.dense_from(-1)


def test_dense_when_dense_wins():
    a, x = tensor((40, 50), gs.CSR(), 0.9), torch.randn(50, 30, dtype=torch.float64)
    assert "leaves it to torch" in str(gs.explain(torch.einsum, "ik,kj->ij", a, x))
    right("ik,kj->ij", a, x)
    with gs.dense_from(None):
        assert gs.explain(torch.einsum, "ik,kj->ij", a, x).how == "compiled"
        assert "leaves it to torch" not in str(gs.explain(torch.einsum, "ik,kj->ij", a, x))
        right("ik,kj->ij", a, x)


def test_compile_shows_loops_and_source():
    k = gs.compile("ik,kj->ij", gs.CSR(), gs.Dense())
    assert "for A1.q in A.pos1[i] .. A.pos1[i + 1]:" in k.loops
    assert "vector_size(64)" in k.source and "#include" not in k.source
    assert "walked as it is stored" in k.explain() and "in strips of vectors" in k.explain()
    a, x = tensor((6, 8), gs.CSR()), torch.randn(8, 3, dtype=torch.float64)
    with gs.dense_from(None):
        assert torch.allclose(k(a, x), a.to_dense() @ x)
    with pytest.raises(TypeError, match=r"called with \(CSC\(\), Dense\(\)\)"):
        k(tensor((6, 8), gs.CSC()), x)
    with pytest.raises(ValueError, match="no kernel to show"):
        gs.compile("ij->i", gs.Dense()).loops
    with pytest.raises(ValueError, match="has 2 operands, but 1 formats"):
        gs.compile("ij,jk->ik", gs.CSR()).loops


def test_a_merge_prints_as_a_person_would_write_it():
    assert gs.compile("ij,ij->", gs.CSR(), gs.CSR()).loops.splitlines()[2:] == [
        "out.acc = 0",
        "in parts for i in 0 .. i.size:",
        "  A1.q = A.pos1[i]",
        "  A1.end = A.pos1[i + 1]",
        "  B1.q = B.pos1[i]",
        "  B1.end = B.pos1[i + 1]",
        "  while A1.q < A1.end and B1.q < B1.end:",
        "    A1.i = A.crd1[A1.q]",
        "    B1.i = B.crd1[B1.q]",
        "    if A1.i == B1.i:",
        "      j = A1.i",
        "      out.acc += A.val[A1.q] * B.val[B1.q]",
        "      A1.q += 1",
        "      B1.q += 1",
        "    else:",
        "      if A1.i < B1.i:",
        "        A1.q += 1",
        "      else:",
        "        B1.q += 1",
        "out[0] = out.acc",
    ]


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=str)
def test_operands_of_torch_sparse_are_converted(layout):
    dense = torch.randn(5, 6) * (torch.rand(5, 6) < 0.4)
    other = torch.randn(6, 3)
    torch.testing.assert_close(gs.einsum("ik,kj->ij", dense.to_sparse(layout=layout), other), dense @ other)
    ours = gs.from_dense(dense.t().contiguous(), gs.CSR())
    both = gs.einsum("ik,kj->ij", dense.to_sparse(layout=layout), ours)
    torch.testing.assert_close(both.to_dense(), dense @ dense.t())
