"""What the GPU back end refuses: a warning, an error if asked for, and ``gs.explain`` says why."""

import pytest
import torch

import gossamer as gs
from gossamer.core import fallback as policy
from tests.compiler.gpu.emulated import gpu, needs_a_compiler, sparse

pytestmark = [needs_a_compiler, pytest.mark.usefixtures("gpu")]
__all__ = ["gpu"]
REFUSED = "ij + j -> ij"


def test_what_is_refused_warns_or_raises():
    a, x = sparse(5, 6), torch.randn(6)
    with pytest.raises(NotImplementedError, match="no sparse operand is a factor of every term"):
        gs.einsum(REFUSED, a, x)
    policy._told.clear()
    with gs.fallback("warn"), pytest.warns(gs.FallbackWarning, match=r"gs\.einsum\(CSR, Dense\) ran on a dense copy"):
        out = gs.einsum(REFUSED, a, x)
    torch.testing.assert_close(out.to_dense() if isinstance(out, gs.SparseTensor) else out, a.to_dense() + x)
    found = gs.explain(gs.einsum, REFUSED, a, x)
    assert found.how == "fallback" and "no sparse operand is a factor" in found.why


def test_what_is_taken_is_explained():
    found = gs.explain(gs.einsum, "ij,jk->ik", sparse(5, 6), torch.randn(6, 32))
    assert found.how == "compiled" and "8 lanes" in found.why and "on the GPU" in found.why
    assert "Dense" in gs.explain(torch.einsum, "ij,jk->ik", sparse(5, 6), torch.randn(6, 32)).formats


def test_other_types_are_refused():
    a = sparse(5, 6).to(torch.complex64)
    with pytest.raises(NotImplementedError, match="complex64"):
        gs.einsum("ij->i", a)


def test_the_loops_are_shown():
    k = gs.compile("ik,kj->ij", gs.CSR(), gs.Dense())
    assert "parallel for A0.q in 0 .. A.count0:" in k.loops and "__global__" in k.source and "lanes" in k.explain()
