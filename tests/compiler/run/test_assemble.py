"""Sparse results: counted once for each pair of patterns, written in place, in order."""

import gc

import pytest
import torch

import gossamer as gs
from gossamer.compiler.run.assemble import bound
from gossamer.compiler.run.cache import PLANS, RESULTS
from gossamer.ops.plans_of import plan_of


def _random(rows, columns, density, seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator, dtype=dtype)
    return x * (torch.rand(rows, columns, generator=generator) < density)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
@pytest.mark.parametrize("columns", [1, 15, 63, 64, 65, 130, 1000])
@pytest.mark.parametrize("density", [0.02, 0.15, 0.7])
def test_rows_that_are_full_and_empty_in_places(columns, density, dtype):
    a = (3 * _random(9, 40, 0.2, 1, torch.float64)).to(dtype)
    b = (3 * _random(40, columns, density, 2, torch.float64)).to(dtype)
    b[:, columns // 2 : columns // 2 + 5] = 0
    c = gs.einsum("ik,kj->ij", gs.from_dense(a, gs.CSR()), gs.from_dense(b, gs.CSR()))
    c.structure.check(c.values())
    bound = 40 * torch.finfo(torch.float32).eps * (a.double().abs() @ b.double().abs())
    assert bool(((c.to_dense().double() - a.double() @ b.double()).abs() <= bound).all())
    assert c.nnz == int(((a != 0).double() @ (b != 0).double() > 0).sum())


def test_the_same_patterns_are_counted_once_and_other_values_are_right():
    a, b = gs.from_dense(_random(30, 20, 0.2, 1), gs.CSR()), gs.from_dense(_random(20, 50, 0.2, 2), gs.CSR())
    first = gs.einsum("ik,kj->ij", a, b)
    other = gs.SparseTensor(2 * a.values(), a.structure)
    again = gs.einsum("ik,kj->ij", other, b)
    assert torch.allclose(again.to_dense(), 2 * first.to_dense())
    assert again.structure.arrays["pos1"] is first.structure.arrays["pos1"]
    assert again.structure.arrays["crd1"] is not first.structure.arrays["crd1"]


@pytest.mark.parametrize("out", [gs.CSR(), gs.CSC(), gs.COO()])
@pytest.mark.parametrize("expression", ["ij + ij -> ij", "ij,ij->ij"])
def test_results_without_a_workspace_are_counted_too(expression, out):
    a, b = _random(30, 20, 0.2, 1), _random(30, 20, 0.3, 2)
    for scale in (1, 2):  # the second time with the places of the first
        c = gs.einsum(expression, scale * gs.from_dense(a, gs.CSR()), gs.from_dense(b, gs.CSR()), out=out)
        c.structure.check(c.values())
        want = scale * a + b if "+" in expression else scale * a * b
        assert torch.allclose(c.to_dense(), want)


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize(
    ("expression", "most"), [("ij + ij -> ij", "sum"), ("ij,ij->ij", "least"), ("max(ij, ij) - ij -> ij", "all")]
)
def test_what_is_computed_entry_by_entry_is_written_in_one_pass(rows, expression, most, monkeypatch):
    tensors = [gs.from_dense(_random(rows, 50, d, n), gs.CSR()) for n, d in enumerate((0.1, 0.3, 0.2))]
    tensors = tensors[: expression.count("ij") - 1]
    want = gs.einsum(expression, *(t.to_dense() for t in tensors))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        plan = plan_of(expression, tensors)
        entries = [t.nnz for t in tensors]
        assert bound(plan) == {"sum": sum(entries), "least": min(entries), "all": sum(entries)}[most]
        ran = []
        monkeypatch.setattr(type(plan.kernel), "run", _noted(type(plan.kernel).run, ran))
        for _ in range(2):
            got = gs.einsum(expression, *tensors)
            got.structure.check(got.values())
            assert torch.equal(got.to_dense(), want)
        assert ran == ["fill"] * (2 if got.nnz else 1)  # nothing is written the second time if there is nothing
    finally:
        torch.set_num_threads(before)


def _noted(run, ran):
    return lambda self, name, *rest: ran.append(name) or run(self, name, *rest)


@pytest.mark.parametrize(
    ("expression", "formats"),
    [("ij,j->ij", (gs.CSR(),)), ("ij,jk->ik", (gs.CSR(), gs.CSR())), ("ij + ij -> ij", (gs.CSR(), gs.ELL()))],
)
def test_other_results_have_no_bound(expression, formats):
    tensors = [gs.from_dense(_random(20, 20, 0.2, n), format) for n, format in enumerate(formats)]
    tensors += [torch.randn(20)] * (expression.startswith("ij,j->"))
    plan = plan_of(expression, tensors, gs.COO())
    assert bound(plan) is None or expression == "ij,j->ij"


def test_zeros_that_are_not_written_as_such_are_entries():
    """where(0 > 0.5, b, 0) is zero without an entry of the first, but was written to memory for entries alone."""
    a, b = gs.from_dense(_random(4, 6, 0.4, 1), gs.CSR()), gs.from_dense(_random(4, 6, 0.4, 2), gs.CSC())
    plan = plan_of("where(ij > 0.5, sin(ij), 0) -> ij", [a, b])
    assert bound(plan) is None or plan.kernel.points == ()
    got = gs.einsum("where(ij > 0.5, sin(ij), 0) -> ij", a, b)
    got.structure.check(got.values())
    want = torch.where(a.to_dense() > 0.5, b.to_dense().sin(), 0)
    assert torch.allclose(got.to_dense(), want)


def test_rows_that_are_not_what_threads_share_are_counted_on_their_own():
    """The outer loop walks the entries of a vector, or the columns of an operand: not the rows of the result."""
    a, v = _random(12, 10, 0.3, 1), _random(1, 12, 0.5, 2)[0]
    for format in (gs.CSR(), gs.DCSR(), gs.CSC(), gs.COO()):
        for _ in range(2):
            given = gs.from_dense(v, gs.Format("compressed")), gs.from_dense(a, format)
            got = gs.einsum("i,ij->ij", *given, out=gs.CSR())
            got.structure.check(got.values())
            assert torch.equal(got.to_dense(), v[:, None] * a)
    b = gs.from_dense(torch.zeros(12), gs.Format("compressed"))
    deep = gs.Format("dense", "compressed", "dense", "compressed", order=(2, 3, 1, 0))
    got = gs.einsum("l,Rjgl->lg", b, gs.from_dense(torch.rand(3, 4, 10, 12), deep))
    got.structure.check(got.values())
    assert got.nnz == 0


def test_threads_change_nothing():
    a = gs.from_dense(_random(400, 300, 0.1, 1), gs.CSR())
    b = gs.from_dense(_random(300, 350, 0.1, 2), gs.CSR())
    before = torch.get_num_threads()
    made = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            PLANS.clear()
            made += [gs.einsum("ik,kj->ij", a, b) for _ in range(2)]
    finally:
        torch.set_num_threads(before)
    assert not plan_of("ik,kj->ij", [a, b]).alone
    for other in made[1:]:
        assert torch.equal(other.values(), made[0].values())
        assert torch.equal(other.structure.arrays["crd1"], made[0].structure.arrays["crd1"])


def test_large_results_are_whole():
    a = gs.from_dense(_random(1200, 900, 0.2, 1), gs.CSR())
    b = _random(900, 1100, 0.2, 2)
    c = gs.einsum("ik,kj->ij", a, gs.from_dense(b, gs.CSR()))  # 5 MB of values: in large pages
    assert torch.allclose(c.to_dense(), a.to_dense() @ b, atol=1e-3)


def test_vectors_are_appended_by_their_number():
    """Found by a random case: such numbers are 64 bits wide, also where they are the last coordinate."""
    a, x = _random(9, 40, 0.2, 1), torch.randn(9, 50)
    got = gs.einsum("ik,ij->j", gs.from_dense(a, gs.CSR()), x, out=gs.CSF())
    got.structure.check(got.values())
    assert torch.allclose(got.to_dense(), a.sum(1) @ x, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
@pytest.mark.parametrize(("out", "columns"), [(gs.CSR(), 50), (gs.CSC(), 50), (gs.CSR(), 70_000)])
@pytest.mark.parametrize("threads", [1, 2])
def test_from_the_third_time_on_values_alone_are_computed(out, columns, threads, dtype, monkeypatch):
    """With one structure for all results; rows without entries are skipped."""
    monkeypatch.setattr("gossamer.compiler.run.plans._ALONE", 0)
    a = (3 * _random(300, 40, 0.05, 1, torch.float64)).to(dtype)
    b = torch.zeros(40, columns, dtype=dtype)
    b[:, :50] = (3 * _random(40, 50, 0.2, 2, torch.float64)).to(dtype)
    a[10:40] = 0
    sa, sb = gs.from_dense(a, gs.CSR()), gs.from_dense(b, gs.CSR())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = [
            gs.einsum("ik,kj->ij", gs.SparseTensor((n + 1) * sa.values(), sa.structure), sb, out=out) for n in range(5)
        ]
    finally:
        torch.set_num_threads(before)
    assert made[3].structure is made[1].structure and made[4].structure is made[1].structure
    assert made[1].structure is not made[0].structure
    for n, c in enumerate(made):
        c.structure.check(c.values())
        assert c.format == out and torch.equal(c.structure.arrays["crd1"], made[0].structure.arrays["crd1"])
        torch.testing.assert_close(c.to_dense()[:, :50].double(), (n + 1) * (a.double() @ b[:, :50].double()),
                                   rtol=1e-5, atol=1e-4)  # fmt: skip


def test_a_known_result_is_dropped_with_its_plan():
    a, b = gs.from_dense(_random(30, 20, 0.2, 1), gs.CSR()), gs.from_dense(_random(20, 50, 0.2, 2), gs.CSR())
    before, entries = RESULTS.nbytes, len(RESULTS)
    for _ in range(3):
        made = gs.einsum("ik,kj->ij", a, b)
    assert len(RESULTS) == entries + 1 and RESULTS.nbytes >= before + made.structure.nbytes()
    del a, b
    gc.collect()
    assert len(RESULTS) == entries and RESULTS.nbytes == before
    made.structure.check(made.values())


def test_nothing_is_kept_of_a_product_that_is_computed_once_or_twice_with_new_patterns():
    entries = len(RESULTS)
    for seed in range(4):
        a = gs.from_dense(_random(30, 30, 0.2, seed), gs.CSR())
        gs.einsum("ik,kj->ij", a, a)
    assert len(RESULTS) == entries


@pytest.mark.parametrize("share", [1, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_new_product_on_one_thread_is_written_in_one_pass(share, dtype, monkeypatch):
    """Into memory for as many entries as multiplications, unless these are too many."""
    a, b = _random(40, 30, 0.2, 1, dtype), _random(30, 60, 0.3, 2, dtype)
    sa, sb = gs.from_dense(a, gs.CSR()), gs.from_dense(b, gs.CSR())
    products = int(((a != 0).double() @ (b != 0).double()).sum())
    monkeypatch.setattr("gossamer.compiler.run.assemble._AT_ONCE", share * (4 + dtype.itemsize) * products)
    assert bound(plan_of("ik,kj->ij", [sa, sb])) == (products if share else None)
    run, ran = type(plan_of("ik,kj->ij", [sa, sb]).kernel).run, []
    monkeypatch.setattr(
        type(plan_of("ik,kj->ij", [sa, sb]).kernel),
        "run",
        lambda k, name, *args: ran.append(name) or run(k, name, *args),
    )
    made = [gs.einsum("ik,kj->ij", sa, sb) for _ in range(3)]
    assert ran == (["fill", "fill", "again"] if share else ["count", "fill", "fill", "again"])
    for c in made:
        c.structure.check(c.values())
        torch.testing.assert_close(c.to_dense(), a @ b)
        assert c.structure.arrays["crd1"].numel() == c.nnz == int(((a != 0).double() @ (b != 0).double() > 0).sum())
