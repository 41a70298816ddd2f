"""Plain torch calls that the compiler computes: the same results as before it took over, and gs.explain says so."""

import pytest
import torch

import gossamer as gs
from gossamer.ops import bridge

FORMATS = [gs.CSR(), gs.CSC(), gs.COO(), gs.BSR((3, 4))]
CALLS = {
    "matmul": lambda a, b, c: a @ c,
    "mm dense": lambda a, b, c: a @ torch.ones(60, 9, dtype=torch.float64),
    "mv": lambda a, b, c: a @ torch.ones(60, dtype=torch.float64),
    "add": lambda a, b, c: a + b,
    "sub": lambda a, b, c: torch.sub(a, b),
    "mul": lambda a, b, c: a * b,
    "maximum": lambda a, b, c: torch.maximum(a, b),
    "minimum": lambda a, b, c: torch.minimum(a, b),
    "sum 0": lambda a, b, c: a.sum(0),
    "sum 1": lambda a, b, c: torch.sum(a, dim=1),
    "amax": lambda a, b, c: a.amax(1),
    "amin": lambda a, b, c: a.amin(0),
    "softmax": lambda a, b, c: torch.softmax(a, -1),
    "log_softmax": lambda a, b, c: torch.log_softmax(a, 0),
}


def operands(format):
    def tensor(*shape):
        return gs.from_dense(torch.randn(shape, dtype=torch.float64) * (torch.rand(shape) < 0.2), format)

    return tensor(80, 60), tensor(80, 60), tensor(60, 50)


def outcome(call, given):
    given = [t.detach().clone().requires_grad_() for t in given]
    result = call(*given)
    values = result.values() if isinstance(result, gs.SparseTensor) else result
    values.pow(2).sum().backward()
    return result.detach(), [t.grad for t in given]


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_the_compiler_gives_what_the_operators_gave(name, format, monkeypatch):
    given = operands(format)
    monkeypatch.setattr(bridge, "ENTRIES", 10**9)
    before, grads = outcome(CALLS[name], given)
    monkeypatch.setattr(bridge, "ENTRIES", 1)
    after, compiled_grads = outcome(CALLS[name], given)
    assert type(after) is type(before)
    if isinstance(after, gs.SparseTensor):
        assert after.format == before.format and after.nnz == before.nnz
        after, before = after.to_dense(), before.to_dense()
    assert torch.allclose(after, before)
    for old, new in zip(grads, compiled_grads, strict=True):
        assert (old is None) == (new is None)
        assert old is None or torch.allclose(new.to_dense(), old.to_dense())


def test_small_tensors_and_traces_are_left_to_torch():
    a = gs.from_dense(torch.eye(8), gs.CSR())
    assert bridge.usable((a, torch.eye(8))) == "there are too few entries to gain anything by a compiled kernel"
    assert gs.explain(torch.matmul, a, torch.eye(8)).how == "native"


def test_explain_tells_what_the_compiler_does():
    a = gs.sparsify(torch.randn(300, 200), "90%", format=gs.CSR())
    said = gs.explain(torch.matmul, a, torch.randn(200, 64))
    assert said.how == "compiled" and "gs.einsum('ik,kj->ij')" in said.why and "in strips of vectors" in said.why
    assert gs.explain(torch.add, a, a).how == "native"  # one pattern: no loops over indices at all
    assert gs.explain(torch.sum, a, 1).how == "compiled"
    assert gs.explain(torch.sum, a, 1, True).how == "native"
    assert gs.explain(torch.einsum, "ij->j", a).how == "compiled"
    for op in (torch.softmax, torch.log_softmax):
        large, small = (gs.sparsify(torch.randn(n, n), "50%", format=gs.CSR()) for n in (200, 20))
        assert gs.explain(op, large, -1).how == "compiled"
        assert gs.explain(op, large, -1, dtype=torch.float64).how == gs.explain(op, small, -1).how == "native"


def test_torch_einsum_never_falls_back():
    a = gs.sparsify(torch.randn(30, 20), "90%", format=gs.CSR())
    with gs.fallback("error"):
        assert torch.allclose(torch.einsum("ij,jk->ik", a, torch.eye(20)), a.to_dense())
        assert torch.allclose(torch.einsum("ij,jk->ik", [a, torch.eye(20)]), a.to_dense())
        assert torch.einsum("ij,kj->ik", a, a).format == gs.CSR()
