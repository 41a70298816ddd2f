"""Every einsum that is computed on dense copies says so, and is refused under gs.fallback("error")."""

import pytest
import torch
from torch.autograd import forward_ad

import gossamer as gs
from gossamer.core import fallback as policy
from gossamer.native import BuildError

INF = float("inf")


def sparse(*shape, format=None, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-3, 4, shape, generator=generator).to(dtype)
    return gs.from_dense(x * (torch.rand(shape, generator=generator) < 0.3), format or gs.CSR())


A, B, X = sparse(6, 5), sparse(5, 4, seed=1), torch.arange(5.0)
ON_DENSE_COPIES = {
    "fill=1.0 has no loops": (lambda a: gs.einsum("ij->i", a, fill=1.0), A),
    "fill=inf has no loops": (lambda a: gs.einsum("max: ij->i", a, fill=INF), A),
    "the gradient of an expression with fill=inf": (
        lambda a: gs.einsum("min: ik + kj -> ij", a, B.detach().requires_grad_(), fill=INF), A
    ),
    "a sparse operand is read at sums of indices": (
        lambda a: gs.einsum("k, i+k -> i", torch.ones(2), a), sparse(9, format=gs.Format("compressed"))
    ),
    "the gradient of a max has no kernel": (lambda a: gs.einsum("max: ij->i", a.detach().requires_grad_()), A),
    "the gradient of a min has no kernel": (lambda a: gs.einsum("min: ij->j", a.detach().requires_grad_()), A),
    "no kernels for complex64": (lambda a: gs.einsum("ij,jk->ik", a.to(torch.complex64), B.to(torch.complex64)), A),
    "transforms of torch.func": (lambda a: torch.func.vmap(lambda x: gs.einsum("ij,j->i", a, x))(X.expand(3, 5)), A),
}  # fmt: skip


@pytest.mark.parametrize("reason", ON_DENSE_COPIES)
def test_it_is_said_once_and_refused_if_asked(reason):
    call, a = ON_DENSE_COPIES[reason]
    policy._told.clear()
    with pytest.warns(gs.FallbackWarning, match=rf"gs\.einsum\(.*\) ran on a dense copy: .*{reason}"):
        first = call(a)
    second = call(a)  # a second warning would be an error here
    assert torch.equal(first.to_dense(), second.to_dense())
    with gs.fallback("error"), pytest.raises(NotImplementedError, match=f"needs a dense copy: .*{reason}"):
        call(a)
    with gs.fallback("silent"):
        call(a)


def test_a_kernel_that_can_not_be_built(monkeypatch):
    def fail(source):
        raise BuildError("no compiler")

    monkeypatch.setattr("gossamer.compiler.run.runtime.library", fail)
    calls = [
        lambda: gs.einsum("zq,q->z", sparse(6, 5, format=gs.DCSR(), dtype=torch.float64, seed=9), X.double()),
        lambda: gs.einsum("min: zq->z", sparse(6, 5, format=gs.DCSR(), dtype=torch.float64, seed=9), fill=INF),
    ]
    for call in calls:
        with gs.fallback("error"), pytest.raises(NotImplementedError, match="its kernel can't be built: no compiler"):
            call()


def test_what_needs_no_dense_copy_is_not_refused():
    with gs.fallback("error"):
        gs.einsum("min: ik + kj -> ij", A, B, fill=INF)
        gs.einsum("max: ij->i", A)
        gs.einsum("o k, i+k -> o i", A, torch.randn(20))
        gs.einsum("ij->i", A.to_format(gs.Masked()), fill=1.0)  # it is stored dense
        gs.einsum("max: ij->i", A.to_format(gs.Masked()).requires_grad_())
        gs.einsum("ij,jk->ik", A.to(torch.int64), B.to(torch.int64))
        gs.einsum("ij,j->i", A.half(), X.half())
        gs.einsum("ij,j->i", A.detach().requires_grad_(), X).sum().backward()
        gs.einsum("ij,jk->ik", sparse(6, 5, seed=3).to_dense(), B)
        gs.einsum("ij,j->i", A.to("meta"), X.to("meta"))


def test_in_a_trace():
    """A trace can't count the entries of a new pattern; what it can record is compiled."""
    from torch._dynamo.exc import Unsupported

    def product(a, b):
        return gs.einsum("ij,jk->ik", a, b)

    torch._dynamo.reset()
    with gs.fallback("error"):
        with pytest.raises(Unsupported, match="the size of its result is not known in a trace"):
            torch.compile(product, fullgraph=True, backend="aot_eager")(A, B)
        got = torch.compile(product, fullgraph=True, backend="aot_eager")(A, X[:, None])
    torch.testing.assert_close(got, A.to_dense() @ X[:, None])


@pytest.mark.parametrize("expression", ["ij,j->i", "ij,ij,j->j", "ij,j->ij", "exp(ij,j) -> i"])
def test_transforms_of_torch_func(expression):
    tensors = [A.double()] * (expression.count("ij") - expression.count("->ij"))
    x = X.double()
    dense = [t.to_dense() for t in tensors]

    def ours(y):
        made = gs.einsum(expression, *tensors, y)
        return made.to_dense().sum() if isinstance(made, gs.SparseTensor) else made.sum()

    def theirs(y):
        return gs.einsum(expression, *dense, y).sum()

    with gs.fallback("silent"):
        torch.testing.assert_close(torch.func.grad(ours)(x), torch.func.grad(theirs)(x))
        for made, want in zip(*(torch.func.jvp(f, (x,), (x + 1,)) for f in (ours, theirs)), strict=True):
            torch.testing.assert_close(made, want)
        torch.testing.assert_close(torch.func.vmap(ours)(x.expand(3, 5)), torch.func.vmap(theirs)(x.expand(3, 5)))
        torch.testing.assert_close(torch.func.hessian(ours)(x), torch.func.hessian(theirs)(x))
        with forward_ad.dual_level():
            made, want = (forward_ad.unpack_dual(f(forward_ad.make_dual(x, x + 1))) for f in (ours, theirs))
        torch.testing.assert_close(made.tangent, want.tangent)


def test_results_inside_of_a_transform_are_dense():
    with gs.fallback("silent"), pytest.raises(NotImplementedError, match="it can't be in CSR"):
        torch.func.vmap(lambda x: gs.einsum("ij,j->ij", A, x, out=gs.CSR()))(X.expand(3, 5))


def test_tensors_that_no_transform_belongs_to_have_kernels_inside_of_one():
    with gs.fallback("error"):
        got = torch.func.vmap(lambda y: gs.einsum("ij,j->i", A, X).sum() * y)(torch.ones(2))
    torch.testing.assert_close(got, (A.to_dense() @ X).sum().expand(2))
