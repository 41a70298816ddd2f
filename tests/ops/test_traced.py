"""Einsums inside of a trace: one operator in the graph, sparse, and the same as outside."""

import sys
import warnings

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

import gossamer as gs
from gossamer.compiler.run import runtime
from gossamer.ops import traced

FORMATS = [gs.CSR(), gs.CSC(), gs.COO(), gs.BSR((3, 2)), gs.ELL(), gs.DCSR()]
CASES = {
    "ik,kj->ij": ((12, 10), (10, 7)),
    "ki,kj->ij": ((10, 12), (10, 7)),
    "ik,jk->ij": ((12, 10), (7, 10)),
    "ij,j->i": ((12, 10), (10,)),
    "ij,id,jd->ij": ((12, 10), (12, 5), (10, 5)),
    "ij,ij->ij": ((12, 10), (12, 10)),
    "relu(ij) * j -> ij": ((12, 10), (10,)),
    "ij->i": ((12, 10),),
    "mean: ij -> j": ((12, 10),),
}


def operands(expression, format, dtype=torch.float64):
    generator = torch.Generator().manual_seed(len(expression))
    first, *rest = CASES[expression]
    a = torch.randn(first, generator=generator, dtype=dtype) * (torch.rand(first, generator=generator) < 0.4)
    return gs.from_dense(a, format), *(torch.randn(shape, generator=generator, dtype=dtype) for shape in rest)


def results(function, expression, tensors):
    """The result, and the gradients of all operands."""
    leaves = [torch.nn.Parameter(t.detach().clone()) for t in tensors]
    out = function(expression, *leaves)
    out.to_dense().sin().sum().backward()
    return [out.detach().to_dense(), *(leaf.grad.to_dense() for leaf in leaves)], leaves[0].grad


def in_trace(backend="aot_eager"):
    torch._dynamo.reset()
    return torch.compile(lambda expression, *t: gs.einsum(expression, *t).to_dense(), fullgraph=True, backend=backend)


@pytest.mark.parametrize("expression", CASES)
def test_the_same_as_outside(expression):
    for format in FORMATS:
        tensors = operands(expression, format)
        got, grad = results(in_trace(), expression, tensors)
        want, _ = results(gs.einsum, expression, tensors)
        for mine, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(mine, theirs)
        assert isinstance(grad, gs.SparseTensor) and grad.format == format


@pytest.mark.parametrize("format", [*FORMATS, gs.Masked(), gs.formats.PackedCSR()], ids=str)
def test_a_sparse_result_that_leaves_the_trace(format):
    tensors = operands("ij,id,jd->ij", format)
    torch._dynamo.reset()
    function = torch.compile(gs.einsum, fullgraph=True, backend="aot_eager")
    got, grad = results(function, "ij,id,jd->ij", tensors)  # its gradient comes from outside, as a sparse tensor
    want, _ = results(gs.einsum, "ij,id,jd->ij", tensors)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert isinstance(grad, gs.SparseTensor) and grad.format == format


def test_three_dimensions_and_half_precision():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 6, 7, generator=generator) * (torch.rand(5, 6, 7, generator=generator) < 0.3)
    t, u, v = gs.from_dense(x, gs.CSF()), torch.randn(7, 3), torch.randn(6, 3)
    function = in_trace()
    torch.testing.assert_close(function("ikl,lj,kj->ij", t, u, v), torch.einsum("ikl,lj,kj->ij", x, u, v))
    got, _ = results(in_trace(), "ik,kj->ij", [y.bfloat16() for y in operands("ik,kj->ij", gs.CSR(), torch.float32)])
    want, _ = results(gs.einsum, "ik,kj->ij", [y.bfloat16() for y in operands("ik,kj->ij", gs.CSR(), torch.float32)])
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == torch.bfloat16
        torch.testing.assert_close(mine, theirs)


def graph_of(function, *tensors):
    """The operators of the graph that torch.compile makes."""
    seen = []

    def look(graph, example):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch._dynamo.reset()
    torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=look))(*tensors)
    return seen


def test_it_stays_sparse():
    a, x = operands("ik,kj->ij", gs.CSR())
    with torch.no_grad():
        assert graph_of(lambda a, x: gs.einsum("ik,kj->ij", a, x), a, x) == ["gossamer.einsum.default"]
        assert graph_of(lambda a, x: torch.einsum("ik,kj->ij", a, x), a, x) == ["gossamer.einsum.default"]


@pytest.mark.parametrize("expression", ["ii->i", "ij,ij->ji", "max: ij->i", "...j,j->..."])
def test_the_rest_is_right_on_dense_copies(expression):
    x = torch.randn(6, 6, dtype=torch.float64) * (torch.rand(6, 6) < 0.5)
    a = gs.from_dense(x, gs.CSR())
    more = [torch.randn(6, dtype=torch.float64)] if expression.startswith("...") else []
    more = [a] if expression == "ij,ij->ji" else more
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        got = in_trace()(expression, a, *more)
    torch.testing.assert_close(got.to_dense(), gs.einsum(expression, a, *more).to_dense())


def test_any_number_of_columns():
    a, _ = operands("ik,kj->ij", gs.CSR())
    torch._dynamo.reset()
    function = torch.compile(
        lambda a, x: gs.einsum("ik,kj->ij", a, x), fullgraph=True, backend="aot_eager", dynamic=True
    )
    with torch.no_grad():
        for columns in (3, 8, 21):
            x = torch.randn(10, columns, dtype=torch.float64)
            torch.testing.assert_close(function(a, x), a.to_dense() @ x)


def test_torch_s_own_checks():
    a, q, k = operands("ij,id,jd->ij", gs.CSR())
    arrays = list(a.structure.arrays.values())
    values = a.values().clone().requires_grad_()
    given = ("ij,id,jd->ij", ["CSR()", "", ""], [2, 12, 10], [values, *arrays, q.requires_grad_(), k.requires_grad_()])
    torch.library.opcheck(torch.ops.gossamer.einsum.default, given)


def test_structures_live_as_long_as_their_arrays():
    a, x = operands("ik,kj->ij", gs.CSR())
    function = in_trace()
    with torch.no_grad():
        function("ik,kj->ij", a, x)
        before = len(traced._structures)
        function("ik,kj->ij", a, x)
    assert len(traced._structures) == before
    del a, function
    torch._dynamo.reset()


def test_without_a_compiler(monkeypatch):
    def refuse(source):
        raise runtime.BuildError("no C compiler")

    a, x = operands("ik,kj->ij", gs.CSR())
    want, _ = results(gs.einsum, "ik,kj->ij", (a, x))
    monkeypatch.setattr(runtime, "library", refuse)
    monkeypatch.setattr(sys.modules["gossamer.compiler.run.kernel"], "_KERNELS", {})
    fresh = gs.SparseTensor(a.values(), gs.formats.Structure(a.format, a.shape, a.structure.arrays, a.structure.device))
    got, _ = results(in_trace(), "ik,kj->ij", (fresh, x))
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)
