"""Products of several tensors in pairs: the same numbers, formats and gradients as in one kernel."""

import sys

import pytest
import torch

import gossamer as gs
from gossamer.compiler import parse
from gossamer.ops.planned import facts_of, planned
from gossamer.ops.ready import ReadyPath, known

torch.manual_seed(0)


def sparse(*shape, density=0.02, format=None):
    x = torch.randn(shape, dtype=torch.float64) * (torch.rand(shape) < density)
    return gs.from_dense(x, format or gs.CSR())


def dense(*shape):
    return torch.randn(shape, dtype=torch.float64)


A, B = sparse(300, 310), sparse(310, 320, format=gs.CSC())
CASES = {
    "layer": ("nm,mk,ko->no", (A, dense(310, 32), dense(32, 8))),
    "chain": ("ij,jk,kl->il", (A, B, dense(320, 4))),
    "sparse chain": ("ij,jk,kl->il", (sparse(900, 910), sparse(910, 920, format=gs.CSC()), sparse(920, 900))),
    "sums alone": ("ij,jk->k", (A, dense(310, 300))),
    "sampled": ("ij,id,de,je->ij", (A, dense(300, 16), dense(16, 24), dense(310, 24))),
    "functions": ("2 * relu(ij) * jk * tanh(kl) -> il", (A, dense(310, 50), dense(50, 3))),
    "diagonal": ("ij,jj,jk->ik", (A, sparse(310, 310, density=0.5), dense(310, 3))),
    "broadcast": ("ij,jk,kl->il", (A, dense(310, 1), dense(9, 8))),
    "block": ("ij,jk,kl->il", (sparse(300, 308, density=0.01, format=gs.BSR((4, 4))), dense(308, 40), dense(40, 4))),
    "masked": ("ij,jk,kl->il", (sparse(300, 308, format=gs.Masked()), dense(308, 40), dense(40, 4))),
    "tensor": ("ijk,jl,km,mn->iln", (sparse(40, 50, 60, format=gs.CSF()), dense(50, 8), dense(60, 7), dense(7, 2))),
    "a number": (",ij,jk,kl->il", (dense(), A, dense(310, 32), dense(32, 2))),
}


def expected(name, tensors):
    given = [t.to_dense() if isinstance(t, gs.SparseTensor) else t for t in tensors]
    if name == "functions":
        return 2 * given[0].relu() @ given[1] @ given[2].tanh()
    given[1] = given[1].expand(310, 9) if name == "broadcast" else given[1]
    return torch.einsum(CASES[name][0], *given)


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    expression, tensors = CASES[name]
    got = gs.einsum(expression, *tensors)
    got = got.to_dense() if isinstance(got, gs.SparseTensor) else got
    want = expected(name, tensors)
    if name == "sampled":
        want = want * tensors[0].mask()
    assert got.shape == want.shape and torch.allclose(got, want, atol=1e-10)


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("broadcast", "a number")])
def test_each_is_planned(name):
    expression, tensors = CASES[name]
    assert planned(parse(expression, [t.dim() for t in tensors]), tensors, None) is not None


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    expression, tensors = CASES[name]
    given = [t.detach().requires_grad_() for t in tensors]
    other = [(t.to_dense() if isinstance(t, gs.SparseTensor) else t).detach().requires_grad_() for t in tensors]
    got, want = gs.einsum(expression, *given), expected(name, other)
    got = got.to_dense() if isinstance(got, gs.SparseTensor) else got
    weight = torch.randn_like(want)
    if name == "sampled":
        weight = weight * tensors[0].mask()
    (got * weight).sum().backward()
    (want * weight).sum().backward()
    for t, d in zip(given, other, strict=True):
        mine = t.grad.to_dense() if isinstance(t.grad, gs.SparseTensor) else t.grad
        right = d.grad * t.detach().mask() if isinstance(t, gs.SparseTensor) else d.grad
        assert torch.allclose(mine, right, atol=1e-9)


def test_the_result_has_the_form_of_one_kernel():
    expression, tensors = CASES["sampled"]
    assert gs.einsum(expression, *tensors).structure is tensors[0].structure
    assert gs.einsum(*CASES["sparse chain"][:1], *CASES["sparse chain"][1]).format == gs.CSR()
    expression, tensors = CASES["layer"]
    assert gs.einsum(expression, *tensors, out=gs.CSR()).format == gs.CSR()


def test_a_part_that_appears_twice_is_computed_once(monkeypatch):
    module = sys.modules["gossamer.ops.einsum"]  # the function has the same name
    done, compute = [], module._computed
    monkeypatch.setattr(module, "_computed", lambda *args: done.append(args[1]) or compute(*args))
    a = sparse(400, 400, density=0.004)
    got = gs.einsum("ij,jk,kl,lm->im", a, a, a, a)
    d = a.to_dense()
    assert torch.allclose(got.to_dense(), d @ d @ d @ d)
    assert len(done) < 3  # (A A) (A A)


def test_a_call_like_one_before_is_kept():
    a, x, w = sparse(300, 300), dense(300, 64), dense(64, 4)
    with torch.no_grad():
        gs.einsum("nm,mk,ko->no", a, x, w)
        again = known("nm,mk,ko->no", (a, x, w), None)
        assert isinstance(again, ReadyPath) and again.nbytes() >= 0
        assert torch.allclose(again((a, 2 * x, w)), a.to_dense() @ (2 * x) @ w)


def test_plans_depend_on_statistics_not_on_patterns():
    from gossamer.compiler.planner.search import search

    before = search.cache_info().misses
    for seed in range(4):
        torch.manual_seed(seed)
        keys = torch.randperm(90_000)[:900].sort().values
        structure, _ = gs.formats.Structure.from_keys(gs.CSR(), keys, (300, 300))
        a = gs.SparseTensor(torch.randn(900), structure)
        gs.einsum("nm,mk,ko->no", a, torch.randn(300, 33), torch.randn(33, 5))
    assert search.cache_info().misses == before + 1


def test_integers_are_one_kernel():
    a = gs.from_dense(torch.eye(3, dtype=torch.int64), gs.CSR())
    assert planned(parse("ij,jk,kl->il", (2, 2, 2)), [a, a, a], None) is None


def test_facts_look_at_no_array():
    masked = gs.from_dense(torch.eye(3), gs.Masked())
    assert facts_of(("i", "j"), masked).sparse is False
    assert facts_of(("i", "j"), torch.eye(3)).entries == 9


def test_in_a_trace_with_gradients():
    expression, (a, x, w) = CASES["layer"]
    f = torch.compile(lambda x, w: gs.einsum(expression, a, x, w), backend="aot_eager", fullgraph=True)
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    f(x, w).square().sum().backward()
    d = a.to_dense()
    y = d @ x.detach() @ w.detach()
    assert torch.allclose(x.grad, d.t() @ (2 * y) @ w.detach().t()) and torch.allclose(
        w.grad, (d @ x.detach()).t() @ (2 * y)
    )


@pytest.mark.parametrize("expression", [", abc -> cb", "d, abc, c -> ab", "a, abc -> bc"])
def test_a_sparse_result_has_the_entries_that_follow_from_the_patterns(expression):
    """What is zero by its values is stored all the same, so that a gradient comes back."""
    a = sparse(3, 40, 50, density=0.1, format=gs.COO())
    sizes = {"a": 3, "c": 50, "d": 4}
    groups = [g.strip() for g in expression.partition("->")[0].split(",")]
    given = [a if g == "abc" else torch.zeros([sizes[v] for v in g], dtype=torch.float64) for g in groups]
    leaves = [t if t is a else t.requires_grad_() for t in given]
    got = gs.einsum(expression, *leaves)
    got = got.to_dense() if isinstance(got, gs.SparseTensor) else got
    got.sum().backward()
    dense = [a.to_dense() if t is a else t.detach().clone().requires_grad_() for t in leaves]
    torch.einsum(expression, *dense).sum().backward()
    for t, d in zip(leaves, dense, strict=True):
        assert t is a or torch.allclose(t.grad, d.grad)
