"""gs.compile: kernels that are shown before there is data, and calls of them."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import NotationError
from gossamer.compiler.run.runtime import available

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")
A = torch.tensor([[1.0, 0, 2], [0, 0, 3]])


def test_by_hand():
    product = gs.compile("ij,j->i", gs.CSR(), gs.Dense())
    assert product(gs.from_dense(A, gs.CSR()), torch.tensor([1.0, 10, 100])).tolist() == [201, 300]
    assert repr(product) == "compile('ij,j->i', CSR(), Dense())"
    assert repr(gs.compile("ij->ji", gs.CSR(), out=gs.CSC())) == "compile('ij->ji', CSR(), out=CSC())"


def test_what_is_shown():
    product = gs.compile("ij,j->i", gs.CSR(), gs.Dense())
    assert product.loops.splitlines()[0] == "# C[i] = sum over j of A[i, j] * B[j]"
    assert "run_fill" in product.source and "loops: i > j" in product.explain()


def test_after_a_call_its_own_kernel_is_shown():
    product = gs.compile("ij,j->i", gs.CSR(), gs.Dense())
    before = product.explain()
    product(gs.from_dense(A, gs.CSR()), torch.ones(3))
    assert "3 entries" in product.explain() and "3 entries" not in before


def test_a_result_of_a_format():
    double = gs.compile("2 * ij -> ji", gs.CSR(), out=gs.CSR())
    got = double(gs.from_dense(A, gs.CSR()))
    assert got.format == gs.CSR() and torch.equal(got.to_dense(), 2 * A.t())


@pytest.mark.parametrize("text", ["i k, i+k -> i", "o k, i+4*k -> o i", "k, b 3*i+2*k -> b i", "i k, 5*i+k -> "])
def test_an_example_for_affine_access_fits_its_operands(text):
    formats = (gs.CSR() if " " in text.split(",")[0] else gs.Format("compressed"), gs.Dense())
    assert "A sparse" in gs.compile(text, *formats).loops


def test_other_formats_are_refused():
    product = gs.compile("ij,j->i", gs.CSR(), gs.Dense())
    with pytest.raises(TypeError, match=r"was called with \(CSC\(\), Dense\(\)\): convert with .to_format, or compile"):
        product(gs.from_dense(A, gs.CSC()), torch.ones(3))
    with pytest.raises(TypeError, match=r"was called with \(CSR\(\)\)"):
        product(gs.from_dense(A, gs.CSR()))


def test_nothing_to_show():
    with pytest.raises(ValueError, match="no operand is sparse, so torch computes it and there is no kernel to show"):
        _ = gs.compile("ij,j->i", gs.Dense(), gs.Dense()).loops
    with pytest.raises(NotationError, match="has 2 operands, but 1 formats are given"):
        _ = gs.compile("ij,j->i", gs.CSR()).source
