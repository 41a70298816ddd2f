"""Operands of one pattern: computed from values alone, and right; anything else is left as it is."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import interpret, parse
from gossamer.ops.plans_of import plan_of, plans_of

FORMATS = [gs.CSR(), gs.CSC(), gs.COO(), gs.DCSR(), gs.CSF(), gs.BSR((2, 3)), gs.ELL(), gs.Masked()]
ENTRYWISE = ["ij,ij->", "ij->", "ij,ij->ij", "ij + ij -> ij", "relu(ij - ij) -> ij", "max(ij, ij) ->", "sin(ij) -> ij"]


def twins(format, separate=False, dtype=torch.float64):
    """Two tensors with the same pattern: one structure, or two that are equal."""
    mask = torch.rand(12, 18) < 0.3
    x, y = ((torch.rand(12, 18, dtype=dtype) + 0.5) * mask for _ in range(2))
    a, b = gs.from_dense(x, format), gs.from_dense(y, format)
    return a, b if separate else gs.SparseTensor(b.values(), a.structure)


def flat(expression, *tensors, out=None):
    return plan_of(expression, list(tensors), out).flat is not None


def test_hand_checked():
    a = gs.from_dense(torch.tensor([[1.0, 0, 2], [0, 3, 0]]), gs.CSR())
    b = gs.SparseTensor(torch.tensor([4.0, 5, 6]), a.structure)
    assert gs.einsum("ij,ij->", a, b) == 4 + 10 + 18 and flat("ij,ij->", a, b)
    assert gs.einsum("ij + ij -> ij", a, b).values().tolist() == [5, 7, 9]


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("expression", ENTRYWISE)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_values_and_gradients(format, expression, separate):
    given = [t.detach().requires_grad_() for t in twins(format, separate)][: expression.split("->")[0].count("ij")]
    dense = [t.detach().to_dense().requires_grad_() for t in given]
    got = gs.einsum(expression, *given)
    want = interpret(parse(expression, [2] * len(given)), dense)
    result = got.to_dense() if isinstance(got, gs.SparseTensor) else got
    assert result.shape == want.shape and torch.allclose(result, want, rtol=1e-13, atol=0)
    if isinstance(got, gs.SparseTensor):
        got.structure.check(got._values.detach())
    weight = torch.rand(want.shape, dtype=torch.float64)
    (result * weight).sum().backward()
    (want * weight).sum().backward()
    for t, d in zip(given, dense, strict=True):
        assert torch.allclose(t.grad.to_dense(), d.grad * t.detach().mask(), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("format", [gs.CSR(), gs.CSC(), gs.COO(), gs.DCSR()], ids=str)
def test_what_is_flat(format):
    a, b = twins(format)
    _, c = twins(format, separate=True)
    assert all(flat(e, *(a, b)[: e.split("->")[0].count("ij")]) for e in ENTRYWISE)
    assert flat("ij,ij->", a, gs.from_dense(b.to_dense(), format))  # another structure, the same pattern
    assert not flat("ij,ij->", a, c)  # another pattern
    for expression in ("ij,ij->i", "ij,ij->ji"):  # combined first, and walked then
        assert [p.flat is not None for p in plans_of(expression, [a, b])] == [True, False]
    assert not flat("ij + 1 -> ij", a)  # not zero where nothing is stored
    assert not flat("max: ij ->", a) and not flat("mean: ij ->", a)
    assert not flat("ij,ij->", a, b.to_dense())


def test_padding_is_never_read():
    a, b = twins(gs.ELL())
    assert not flat("ij,ij->", a, b)


def test_a_square_matrix_and_its_transpose_are_not_twins():
    a = gs.from_dense(torch.eye(5, dtype=torch.float64).cumsum(0), gs.CSR())
    assert gs.einsum("ij,ji->", a, a) == 5 and not flat("ij,ji->", a, a)
    assert gs.einsum("ii->", a) == 5 and not flat("ii->", a)


def test_results_share_the_structure():
    a, b = twins(gs.CSR())
    c = gs.from_dense(b.to_dense(), gs.CSR())
    for other in (b, c):
        for _ in range(2):
            assert gs.einsum("ij + ij -> ij", a, other).structure is a.structure


def test_another_format_for_the_result():
    a, b = twins(gs.CSR())
    for out in (gs.COO(), gs.CSC(), gs.Dense()):
        got = gs.einsum("ij,ij->ij", a, b, out=out)
        assert torch.equal(got.to_dense(), a.to_dense() * b.to_dense())


@pytest.mark.parametrize("entries", [0, 1, 15, 16, 17, 33, 4096, 4097, 100_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_sums_of_any_length(entries, dtype):
    keys = torch.arange(entries) * 3
    x = torch.randint(-4, 5, (entries,)).to(dtype)
    a = gs.core.join.from_entries(keys, x, (1000, 400), gs.CSR())
    assert gs.einsum("ij,ij->", a, a) == (x * x).sum() and gs.einsum("ij->", a) == x.sum()


def test_threads_change_nothing():
    a = gs.core.join.from_entries(torch.arange(300_000), torch.randn(300_000), (1000, 400), gs.CSR())
    before, made = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            made.append(gs.einsum("ij,ij->", a, a).item())
    finally:
        torch.set_num_threads(before)
    exact = a.values().double().square().sum().item()
    assert len(set(made)) == 1 and abs(made[0] - exact) <= 300 * 2**-24 * exact


def test_the_plan_says_so():
    a, b = twins(gs.CSR())
    assert "all operands have one pattern" in plan_of("ij,ij->", [a, b]).explain()
