"""Faults that gs.einsum once had: each is pinned by the case that showed it."""

import itertools
import os
import string
import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import gossamer as gs
from gossamer.compiler import interpret, parse
from gossamer.compiler.language.notation import parse_groups
from gossamer.formats.levels import Level, Store, Walk


@pytest.fixture(autouse=True)
def _quiet():
    """Some of these are computed on dense copies, which is not what is tested here."""
    with gs.fallback("silent"):
        yield


F64 = torch.float64


def sparse(shape, format, density=0.4, dtype=F64):
    return gs.from_dense((3 * torch.randn(shape) * (torch.rand(shape) < density)).to(dtype), format)


def dense(t):
    return t.to_dense() if isinstance(t, gs.SparseTensor) else t


# -- names


@pytest.mark.parametrize("letters", [string.ascii_letters[k : k + 4] for k in range(0, 52, 4)])
def test_all_letters_are_indices(letters):
    """Index n, and w, had the names of variables in the C: a segmentation fault."""
    a, b, x = sparse((6, 7), gs.CSR()), sparse((6, 7), gs.CSR()), torch.randn(7, 5, dtype=F64)
    for i, j in zip(letters, (*letters[1:], letters[0]), strict=True):
        k = "n" if "n" not in (i, j) else "w" if "w" not in (i, j) else "a"
        for expression, tensors in (
            (f"{i}{j},{i}{j}->{i}{j}", (a, b)),
            (f"{i}{j},{j}{k}->{i}{k}", (a, x)),
            (f"{i}{j}->{j}", (a,)),
        ):
            got, want = gs.einsum(expression, *tensors), torch.einsum(expression, *map(dense, tensors))
            assert torch.allclose(dense(got), want), expression


@pytest.mark.parametrize(
    "words",
    [
        "int long float",
        "out acc n",
        "ws hi lo",
        "restrict typedef real",
        "row col feature",
        "i_size A_pos1 out_n",
        "A B C",
    ],
)
def test_words_are_indices(words):
    i, j, k = words.split()
    a, b, x = sparse((6, 7), gs.CSR()), sparse((7, 5), gs.CSR()), torch.randn(7, 5, dtype=F64)
    for other in (b, x):
        got = gs.einsum(f"{i} {j}, {j} {k} -> {i} {k}", a, other)
        assert torch.allclose(dense(got), dense(a) @ dense(other))
    assert torch.allclose(gs.einsum(f"max: {i} {j} -> {i}", a), dense(a).amax(1))


def test_expressions_that_differ_by_letters_share_a_kernel():
    sources = {gs.compile(e, gs.CSR(), gs.Dense()).source for e in ("ik,kj->ij", "nw,wm->nm", "row k, k n -> row n")}
    assert len(sources) == 1


# -- memory

PADDED = [
    gs.ELL(), gs.formats.PackedCSR(), gs.Format("dense", "fixed", order=(1, 0)), gs.formats.Condensed(),
    gs.formats.PackedCSR(order=(1, 0)),
]  # fmt: skip


def test_padded_formats_of_four_dimensions():
    """From 4,096 entries on, places of padding were read that nobody had written: seen with MALLOC_PERTURB_."""
    code = "from tests.ops.test_einsum_faults import check_padded; check_padded()"
    environment = {**os.environ, "MALLOC_PERTURB_": "165"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def check_padded():
    torch.manual_seed(0)
    for format in PADDED:
        a, b = sparse((16, 8, 8, 9), format, 0.6), sparse((8, 9), gs.CSR())
        for expression, tensors in (("abcd,bd->ac", (a, b)), ("abcd->dcba", (a,)), ("abcd->c", (a,))):
            got = gs.einsum(expression, *tensors)
            assert torch.allclose(dense(got), torch.einsum(expression, *map(dense, tensors))), (format, expression)
    for format in PADDED:  # and in three, with gradients
        a, x = sparse((16, 8, 40), format, 0.6).requires_grad_(), torch.randn(40, 6, dtype=F64, requires_grad=True)
        gs.einsum("abc,cd->abd", a, x).sum().backward()
        assert torch.allclose(x.grad, dense(a.detach()).sum((0, 1))[:, None].expand(40, 6))
        assert torch.allclose(dense(a.grad), x.detach().sum(1).expand(16, 8, 40) * a.detach().mask())


# -- types


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("expression", ["ij->i", "ij->", "ij,ij->ij", "ij,jk->ik", "ij,ij->", "ij,kj->ik", "ij->ji"])
def test_types_are_those_of_torch(dtype, expression):
    shapes = {"ij": (5, 6), "jk": (6, 4), "kj": (4, 6)}
    tensors = [sparse(shapes[g], gs.CSR(), dtype=dtype) for g in expression.split("->")[0].split(",")]
    try:
        want = torch.einsum(expression, *map(dense, tensors))
    except NotImplementedError:
        with pytest.raises(TypeError, match="bools can't be contracted"):
            gs.einsum(expression, *tensors)
        return
    got = dense(gs.einsum(expression, *tensors))
    assert got.dtype == want.dtype and torch.equal(got, want)


def test_a_sum_of_int32_beside_a_sparse_operand():
    """torch's sum of int32 is int64, and its memory was read as int32."""
    a, b = sparse((5, 6), gs.CSR(), dtype=torch.int32), sparse((7, 3), gs.Dense(), dtype=torch.int32)
    assert torch.equal(gs.einsum("ij,kl->ik", a, b), torch.einsum("ij,kl->ik", dense(a), b))


def test_numbers_promote_integers_as_in_torch():
    a = sparse((5, 6), gs.CSR(), dtype=torch.int32)
    assert gs.einsum("2 * ij -> ij", a).dtype == torch.int32
    halves = gs.einsum("0.5 * ij -> ij", a)
    assert halves.dtype == torch.float32 and torch.equal(halves.to_dense(), 0.5 * dense(a))
    assert torch.allclose(gs.einsum("tanh(ij) -> j", a), dense(a).tanh().sum(0))
    with pytest.raises(TypeError, match="a mean of int32 is refused, as by torch"):
        gs.einsum("mean: ij->i", a)
    with pytest.raises(TypeError, match="torch has no such operation for bool"):
        gs.einsum("ij - ij -> ij", a.to(torch.bool), a.to(torch.bool))


# -- what expressions mean

MEANINGS = {
    "ij,j + i -> i": lambda a, b, c: a @ b + c,
    "2 * (ij + i) -> i": lambda a, c: 2 * (a.sum(1) + c),
    "(ij - i) * j -> i": lambda a, c, b: ((a - c[:, None]) * b).sum(1),
    "i - ij -> i": lambda c, a: c - a.sum(1),
    "square(ij - i) -> i": lambda a, c: (a - c[:, None]).square().sum(1),
    "ij + j -> j": lambda a, b: a.sum(0) + b,
    "max(ij - i, ij) ->": lambda a, c, d: torch.maximum(a - c[:, None], d).sum(),
    "mean: ij + i -> i": lambda a, c: a.mean(1) + c,
    "max: ij + j -> i": lambda a, b: (a + b).amax(1),
    "ij + 1 -> i": lambda a: a.sum(1) + 1,
}


@pytest.mark.parametrize("expression", MEANINGS)
@pytest.mark.parametrize("format", [gs.CSR(), gs.COO(), gs.Dense()], ids=str)
def test_each_term_sums_its_own_indices(expression, format):
    groups = parse_groups(expression)
    sizes = {"i": 5, "j": 6}
    tensors = [sparse([sizes[v] for v in g], format if len(g) == 2 else gs.Dense()) for g in groups]
    operands = [dense(t).clone().requires_grad_() for t in tensors]
    want = MEANINGS[expression](*operands)
    given = [t.clone().detach().requires_grad_() for t in tensors]
    got = gs.einsum(expression, *given)
    assert torch.allclose(dense(got), want)
    assert torch.allclose(interpret(parse(expression, [t.dim() for t in tensors]), operands), want)
    want.sum().backward()
    dense(got).sum().backward()
    for t, o in zip(given, operands, strict=True):
        stored = t.detach().mask() if isinstance(t, gs.SparseTensor) else 1.0
        assert torch.allclose(dense(t.grad), o.grad * stored)


def test_sums_of_eight_sparse_operands():
    tensors = [sparse((6, 7), gs.CSR()) for _ in range(8)]
    got = gs.einsum(" + ".join(["ij"] * 8) + " -> ij", *tensors)
    assert got.format == gs.CSR() and torch.allclose(dense(got), sum(map(dense, tensors)))
    nested = "max(ij, " * 7 + "ij" + ")" * 7
    want = torch.stack([*map(dense, tensors)]).amax(0)
    assert torch.allclose(dense(gs.einsum(f"{nested} -> ij", *tensors)), want)


def test_an_order_is_found_for_every_maximum():
    """The orders that a maximum can have were not among the cheapest, which are all that is kept on the way."""
    for levels, order in itertools.product(
        itertools.product(("dense", "compressed"), repeat=3), itertools.permutations(range(3))
    ):
        a = sparse((3, 4, 5), gs.Format(*levels, order=order))
        b = sparse((5, 4, 6), gs.Format(*levels[::-1], order=order[::-1]))
        want = (dense(a).permute(1, 0, 2)[:, :, None] * dense(b).permute(1, 2, 0)[:, None]).amax(3)
        assert torch.allclose(gs.einsum("max: ijk,kjl->jil", a, b), want), (levels, order)


def test_a_maximum_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no max over index 'j', which has size 0"):
        gs.einsum("max: ij->i", sparse((3, 0), gs.CSR()))


# -- long sums


def test_long_sums_are_as_exact_as_those_of_torch():
    """30 million ones in float32, added one by one, are 16,777,216."""
    n = 17_000_000
    up = torch.arange(n + 1, dtype=torch.int32)
    ends = torch.tensor([0, n], dtype=torch.int32)
    column, row = (
        gs.SparseTensor(torch.ones(n), gs.formats.Structure(gs.CSR(), shape, {"pos1": pos, "crd1": crd}, up.device))
        for shape, pos, crd in (((n, 1), up, torch.zeros_like(up[1:])), ((1, n), ends, up[:-1]))
    )
    with gs.dense_from(None):
        for expression, tensors in (
            ("ij->", (column,)), ("ij->j", (column,)), ("ij->", (row,)), ("ij->i", (row,)),
            ("ij,j->i", (row, torch.ones(n))), ("ij,i->j", (column, torch.ones(n))),
            ("ij,jk->ik", (row, torch.ones(n, 2))), ("ij,ik->jk", (column, torch.ones(n, 2))),
        ):  # fmt: skip
            assert gs.einsum(expression, *tensors).eq(n).all(), expression


def test_a_long_sum_has_an_error_like_that_of_torch():
    x = torch.rand(3000, 2000)
    a, exact = gs.from_dense(x, gs.CSR()), x.double().sum()
    ours, theirs = (abs(s.double() - exact) for s in (gs.einsum("ij->", a), x.sum()))
    assert ours <= theirs + exact * 2**-23


# -- levels


@dataclass(frozen=True)
class Heap(Level):
    """The level of docs/how-to/level.md."""

    arrays: ClassVar[tuple[str, ...]] = ("first", "many", "crd")
    walk: ClassVar[Walk | None] = Walk("first[p]", "first[p] + many[p]", "crd[at]")
    store: ClassVar[Store | None] = Store("first[p] + rank", "crd[at] = i", "coordinates")

    def prepare(self, counts, parents, size, dtype):
        crd = torch.empty(int(counts.sum()), dtype=dtype)
        return {"first": (counts.cumsum(0) - counts).to(dtype), "many": counts.to(dtype), "crd": crd}

    def unpack(self, arrays, parents, size, device):
        return torch.repeat_interleave(torch.arange(parents), arrays["many"].long()), arrays["crd"].long(), None

    def positions(self, arrays, parents, size):
        return arrays["crd"].numel()


def test_any_level_may_be_the_outermost():
    """How many turns threads share was read from an array that only "compressed" has."""
    x = torch.randn(90, 100) * (torch.rand(90, 100) < 0.6)
    for levels in ((Heap(), "compressed"), ("dense", Heap()), (Heap(), "dense"), (Heap(), Heap())):
        t = gs.from_dense(x, gs.CSR()).to_format(gs.Format(*levels))
        got = gs.einsum("ij,jk->ik", t, torch.eye(100))
        assert torch.allclose(dense(got), x, atol=1e-6)


def test_shapes_without_a_compiler():
    code = """
import torch, gossamer as gs
a, b = gs.from_dense(torch.ones(1, 5), gs.CSR()), torch.ones(1)
for expression, others in (("ij,i->i", [b]), ("ij->i", []), ("ij,ik->ik", [torch.ones(1, 3)]), ("ij->ij", [])):
    got, want = gs.einsum(expression, a, *others), torch.einsum(expression, a.to_dense(), *others)
    assert got.shape == want.shape
    assert torch.equal(got.to_dense() if isinstance(got, gs.SparseTensor) else got, want)
"""
    for native in ("0", "1"):
        environment = {**os.environ, "GOSSAMER_NATIVE": native}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]


def test_a_term_that_broadcasts_counts_for_every_value_of_its_index():
    """The index has the size that other terms give it, also where terms are computed one by one."""
    z = gs.from_dense(torch.tensor([[2.0]]), gs.CSR())
    m = gs.from_dense(torch.eye(3, 7), gs.CSR())
    assert gs.einsum("xz + iz ->", z, m) == 7 * 2 + 3
    assert gs.einsum("xz + iz -> i", z, m).tolist() == [15, 15, 15]
    assert torch.equal(
        gs.einsum("xz + iz ->", z, m), interpret(parse("xz + iz ->", [2, 2]), [z.to_dense(), m.to_dense()])
    )
    grown = z.detach().requires_grad_()
    gs.einsum("xz + iz ->", grown, m).backward()
    assert grown.grad.values().tolist() == [7]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64])
def test_integers_wrap_around_below_a_function_of_floats(dtype):
    x, y = torch.tensor([[1, 0, 100]], dtype=dtype), torch.tensor([[2, 0, 100]], dtype=dtype)
    a, b = gs.from_dense(x, gs.CSR()), gs.from_dense(y, gs.CSR())
    assert torch.equal(gs.einsum("tanh(ij - ij) -> ij", a, b).to_dense(), torch.tanh(x - y))
    assert torch.equal(gs.einsum("0.5 * (ij + ij) -> ij", a, b).to_dense(), 0.5 * (x + y))
    assert torch.equal(gs.einsum("0.5 * ij -> ij", a).to_dense(), 0.5 * x)


def test_unsigned_integers_that_are_subtracted_from_floats_are_not_negated_first():
    """A sum was cut into steps, and -x of uint8 wraps around before it meets a float."""
    k = gs.from_dense(torch.tensor([0, 1, 0, 1], dtype=torch.uint8), gs.Format("compressed"))
    one = torch.tensor(1, dtype=torch.uint8)
    got = gs.einsum("() + tanh(()) - max(2 * i, i) -> i", one, one, k, k)
    assert torch.allclose(got, 1 + torch.tensor(1.0).tanh() - torch.tensor([0.0, 2.0, 0.0, 2.0]))


def test_the_sign_of_a_number_is_no_integer_in_a_vector(caplog):
    a = gs.from_dense(torch.randn(8, 64), gs.CSR())
    x, s = torch.randn(5, 64), torch.tensor(-2.0)
    got = gs.einsum("(sign(()) - ij * ()) * kj -> ik", s, x, s, a)
    assert torch.allclose(got, (s.sign() - x * s) @ a.to_dense().t(), atol=1e-4)
    assert "can't be built" not in caplog.text


def test_an_operand_that_broadcasts_does_not_give_its_entries_to_the_result():
    for dtype in (torch.complex64, torch.float32):
        a = gs.from_dense(torch.tensor([[1], [0], [2]], dtype=dtype), gs.CSF())
        b = gs.from_dense(torch.arange(5).to(dtype), gs.Format("compressed"))
        got = gs.einsum("...b, b, -> ...b", a, b, torch.tensor(2, dtype=dtype))
        got = got.to_dense() if isinstance(got, gs.SparseTensor) else got
        assert torch.equal(got, 2 * a.to_dense() * b.to_dense())


def test_a_product_of_small_integers_that_broadcast_keeps_their_type():
    x, y = torch.ones(5, 4, dtype=torch.int8), torch.ones(1, 3, 4, dtype=torch.int8)
    got = gs.einsum("fx, fmx -> mx", x, y, out=gs.CSR())
    assert got.dtype == torch.int8 and got.to_dense().tolist() == [[5] * 4] * 3


def test_a_contraction_of_integers_with_one_pattern_keeps_their_type():
    a = gs.from_dense(torch.eye(3, dtype=torch.int16), gs.CSR())
    got = gs.einsum("ij,ij,->j", a, a, torch.tensor(2, dtype=torch.int16))
    assert got.dtype == torch.int16 and got.tolist() == [2, 2, 2]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_small_integers_that_broadcast_in_a_full_reduction(dtype):
    """torch.einsum sums the operand that is wider to int64 first, and refuses to multiply that by small integers."""
    x, y = torch.ones(3, 2, 5, dtype=dtype), torch.full((2, 3, 1), 2, dtype=dtype)
    got = gs.einsum("abc,bac->", x, y)
    assert got.dtype == dtype and int(got) == 60
    long = gs.einsum("k a, i+k b -> ", torch.ones(2, 9, dtype=dtype), torch.ones(4, 1, dtype=dtype))
    assert int(long) == 54


def test_nothing_divided_by_a_condition_of_numbers_is_zero():
    """gcc 12 moved the condition out of the loop, and wrote NaN with AVX-512."""
    gs.function("bent_by_a_quarter", "where(x > 0, x, 0.25 * x)")
    a = gs.from_dense(torch.zeros(6, 4, 5, dtype=torch.float64), gs.Masked())
    number = torch.tensor(1.8, dtype=torch.float64)
    assert not gs.einsum("mean: awC / (2 + square(bent_by_a_quarter(()))) -> aw", a, number).any()
    b = gs.from_dense(torch.ones(6, 4, 5, dtype=torch.float64), gs.Masked())
    want = torch.full((6, 4), 1 / (2 + 1.8**2), dtype=torch.float64)
    torch.testing.assert_close(gs.einsum("mean: awC / (2 + square(bent_by_a_quarter(()))) -> aw", b, number), want)


@pytest.mark.parametrize("expression", ["zw,zw->wz", "zw + zw -> wz", "zw,wk->kz"])
def test_a_sparse_result_without_rows_has_one_pointer(expression):
    a = gs.from_dense(torch.zeros(5, 0), gs.Format("compressed-nonunique", "fixed", order=(1, 0)))
    b = gs.from_dense(torch.zeros(0, 0), gs.CSR()) if "k" in expression else torch.zeros(5, 0)
    made = gs.einsum(expression, a, b, out=gs.CSR())
    assert made.structure.arrays["pos1"].tolist() == [0] and made.shape == (0, 5)
    made.structure.check(made.values())


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_a_term_beside_an_empty_sum_is_counted_once(dtype):
    """The result was multiplied by the size of the index that is summed, which is 0."""
    ly, number = gs.from_dense(torch.zeros(0, 5, dtype=dtype), gs.CSR()), torch.tensor(0, dtype=dtype)
    got = gs.einsum("max(sin(l), ly) - exp(-square(())) -> y", torch.zeros(0, dtype=dtype), ly, number)
    assert got.tolist() == [-1.0] * 5


@pytest.mark.parametrize("format", [gs.CSR(), gs.CSC(), gs.COO(), gs.DCSR(), gs.BSR((2, 3)), gs.ELL()], ids=str)
@pytest.mark.parametrize(
    "expression", ["rh,hh->rh", "rh,hh->hr", "hr,hh->hr", "h,hh->h", "rh + hh -> rh", "Orh,hqr,hh->"]
)
def test_a_diagonal_beside_a_dense_operand(expression, format):
    """All lanes of a vector took the diagonal's first entry."""
    generator = torch.Generator().manual_seed(0)
    diagonal = torch.tensor([1.5, 0, 0, 0, -2, 3], dtype=torch.float64)
    hh = torch.eye(6, dtype=torch.float64).roll(1, 0) + torch.diag(diagonal)
    sizes = {"r": 10, "h": 6, "O": 3, "q": 4}
    groups = expression.split("->")[0].replace(" + ", ",").strip().split(",")
    dense = [torch.randn([sizes[v] for v in g], generator=generator, dtype=torch.float64) for g in groups[:-1]]
    ours, theirs = ([x.clone().requires_grad_() for x in dense] for _ in range(2))
    got = gs.einsum(expression, *ours, gs.from_dense(hh, format))
    want = interpret(parse(expression, [t.dim() for t in (*theirs, hh)]), [*theirs, hh])
    torch.testing.assert_close(got.to_dense(), want)
    weight = torch.randn(want.shape, generator=generator, dtype=torch.float64)
    (got.to_dense() * weight).sum().backward()
    (want * weight).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("widths", [(1, 1), (1, 2), (2, 2), (3, 1)])
def test_a_long_sum_of_columns_is_not_added_to_one_place(widths):
    """With the columns outermost, each place of the result was added to once for each row: 2^24 times at most."""
    n = (1 << 24) + 1000
    b = gs.formats.Structure(
        gs.CSR(), (n, widths[1]),
        {"pos1": widths[1] * torch.arange(n + 1, dtype=torch.int32),
         "crd1": torch.arange(widths[1], dtype=torch.int32).repeat(n)}, torch.device("cpu"),
    )  # fmt: skip
    with gs.dense_from(None):
        got = gs.einsum("za,zb->ab", torch.ones(n, widths[0]), gs.SparseTensor(torch.ones(n * widths[1]), b))
    assert got.tolist() == [[float(n)] * widths[1]] * widths[0]


def test_an_operand_on_another_device_after_calls_on_this_one():
    """The key of a repeated call had no device: the kernel read memory that is not there."""
    a, x = gs.from_dense(torch.eye(5, 4), gs.CSR()), torch.ones(4)
    for _ in range(3):
        gs.einsum("ij,j->i", a, x)
    with pytest.raises(TypeError, match="one device"):
        gs.einsum("ij,j->i", a, x.to("meta"))


def test_values_that_torch_negates_when_it_reads_them():
    """The imaginary part of a conjugate is a view with a bit that says so: kernels read the memory."""
    torch.manual_seed(0)
    a, z = gs.sparsify(torch.randn(5, 4), "50%", format=gs.CSR()), torch.randn(4, dtype=torch.complex64)
    b = gs.SparseTensor(torch._neg_view(a.values()), a.structure)
    w, x = torch.nn.Parameter(a), torch.randn(4, requires_grad=True)
    traced = torch.compile(lambda a, v: gs.einsum("ij,j->i", a, v), backend="aot_eager")
    for _ in range(5):
        for v in (z.imag, z.conj().imag):
            torch.testing.assert_close(gs.einsum("ij,j->i", a, v), a.to_dense() @ v)
        torch.testing.assert_close(gs.einsum("ij,j->i", b, v), a.to_dense() @ -v)
        torch.testing.assert_close(traced(a, v), a.to_dense() @ v)
        arrives = torch._neg_view(torch.ones(5))
        of_w, of_x = torch.autograd.grad(gs.einsum("ij,j->i", w, x), [w, x], arrives)
        torch.testing.assert_close(of_x, -a.to_dense().sum(0))
        torch.testing.assert_close(of_w.to_dense(), -x.detach() * a.mask())


def test_values_that_were_resized():
    """A kernel would read beyond them."""
    a, x = gs.from_dense(torch.eye(5, 4), gs.CSR()), torch.ones(4)
    for _ in range(5):
        gs.einsum("ij,j->i", a, x)
    a.values().resize_(2)
    with pytest.raises(ValueError, match=r"resized to \(2,\), must be \(4,\)"):
        gs.einsum("ij,j->i", a, x)


class Named(torch.Tensor):
    """A subclass that changes nothing."""


def test_a_subclass_of_tensor_that_has_memory():
    """It was taken for a tensor of a trace, whose operator calls einsum, without end."""
    a, x = gs.from_dense(torch.eye(5, 4), gs.CSR()), torch.ones(4).as_subclass(Named)
    for _ in range(3):
        out = gs.einsum("ij,j->i", a, x)
    assert isinstance(out, Named) and out.tolist() == [1, 1, 1, 1, 0]
    leaf = torch.ones(4).as_subclass(Named).requires_grad_()
    assert torch.autograd.grad(gs.einsum("ij,j->i", a, leaf).sum(), leaf)[0].tolist() == [1, 1, 1, 1]
