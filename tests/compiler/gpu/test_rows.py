"""Sums for several entries of a row at once: any number of terms, of entries, of lanes; in the emulator."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import parse
from gossamer.compiler.gpu.design import Design
from gossamer.compiler.gpu.emit import Writer
from gossamer.compiler.gpu.mapping import rows
from gossamer.compiler.loops.lower import lower
from tests.compiler.gpu.emulated import arg, gpu, needs_a_compiler, right, sparse

pytestmark = [needs_a_compiler, pytest.mark.usefixtures("gpu")]
__all__ = ["gpu"]


def design(a, d):
    tensors = (a, torch.ones(a.shape[0], d), torch.ones(a.shape[1], d))
    args = [arg(g, t) for g, t in zip(("ij", "id", "jd"), tensors, strict=True)]
    sizes = {"i": a.shape[0], "j": a.shape[1], "d": d}
    return Design(parse("ij,id,jd->ij", (2, 2, 2)), args, sizes, "float", 4, 0, 16)


@pytest.mark.parametrize("width", [20, 33, 128, 512])
def test_any_number_of_terms(width):
    right("ij,id,jd->ij", sparse(7, 90), torch.randn(7, width), torch.randn(90, width), gradients=False)


def test_rows_are_kept_and_long_ones_are_cut():
    a = sparse(7, 90)  # its last row is full
    made = design(a, 32)
    assert (made.roles.outer, made.roles.inner, made.mapping.lines, made.cut.slot) == (("i",), ("j",), 2, None)
    assert made.cut.number > 7
    writer = Writer(lower(made.program), made.mapping)
    writer.block(writer.nest.body)
    text = "\n".join(writer.lines)
    assert text.index("t0_[n] = *(const Line*)(B_val") < text.index("for (idx A1_q_0")  # before the loop over entries
    assert text.index("t1_[u][n] = *(const Line*)(C_val") > text.index("for (idx A1_q_0")


def test_short_rows_and_short_sums_have_entries_of_their_own():
    few = gs.from_dense(torch.eye(6), gs.CSR())
    assert design(few, 32).roles.inner == () and design(sparse(7, 90), 12).roles.inner == ()
    assert rows("d", 12, [12], 4) is None and rows("d", 4096, [4096], 4) is None


@pytest.mark.parametrize("size", [4, 15, 16, 36, 100, 128, 129, 1000])
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_mappings_cover_a_row(size, itemsize):
    made = rows("d", size, [size], itemsize)
    if made is not None:
        assert made.lanes * made.wide * made.lines >= size and 32 % made.lanes == 0
        assert made.whole == (made.lanes * made.wide * made.lines == size) and made.lanes % made.unroll == 0


@pytest.mark.parametrize("format", [gs.CSC(), gs.COO(), gs.BSR((4, 5))], ids=str)
def test_formats_and_gradients(format):
    right("ij,id,jd->ij", sparse(12, 20, format=format), torch.randn(12, 16), torch.randn(20, 16))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int32], ids=str)
def test_types(dtype):
    a = sparse(9, 40, dtype=dtype)
    q, k = (torch.randint(-3, 4, (n, 64)).to(dtype) for n in (9, 40))
    out = gs.einsum("ij,id,jd->ij", gs.mask(a), q, k)
    expected = (q.double() @ k.double().t()) * a.mask()
    torch.testing.assert_close(out.to_dense().double(), expected)


def test_sums_of_all_entries_of_a_row():
    """A factor that does not depend on the shared index is multiplied once for each entry."""
    a, q, k = sparse(7, 90), torch.randn(7, 40), torch.randn(90, 40)
    right("ij,id,jd->i", a, q, k)
    right("ij * exp(j) * id * jd -> i", a, torch.randn(90), q, k, gradients=False)
    right("ij * exp(0.1 * (id + jd)) -> i", a, q, k, gradients=False)
    right(
        "ijk,ir,jr,kr->i", sparse(4, 5, 6, format=gs.CSF()), *(torch.randn(n, 16) for n in (4, 5, 6)), gradients=False
    )


def test_three_dimensions():
    right("ijk,ir,jr,kr->ijk", sparse(3, 5, 40, format=gs.CSF()), *(torch.randn(n, 16) for n in (3, 5, 40)))
