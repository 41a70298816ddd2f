"""Sparse results: counted once for each pair of patterns, written in place, in order."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.run.cache import PLANS
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
