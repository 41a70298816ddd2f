"""Conversions that C does: any format to any other, the same as torch's way to the last bit, and with gradients."""

import contextlib
import itertools
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer as gs
from gossamer import native
from gossamer.compiler.convert import restack, streaming
from gossamer.compiler.convert import tensors as convert
from gossamer.compiler.run import runtime
from gossamer.core.join import build, from_entries
from gossamer.formats import Condensed, PackedCSR, PackedNM, Structure, as_format
from gossamer.formats.values import placed
from tests.formats._draw import blocked, dense, stacks

pytestmark = pytest.mark.skipif(not runtime.available(), reason="no C compiler")

TWO = [
    gs.CSR(), gs.CSC(), gs.COO(), gs.DCSR(), gs.CSF(), gs.BSR((3, 2)), gs.BSR((2, 4), order=(1, 0)), gs.ELL(),
    gs.Masked(), gs.Format("compressed", "dense"), gs.Format("compressed", "bitmap", order=(1, 0)), PackedCSR(),
    Condensed(), PackedCSR(7, order=(1, 0)),
]  # fmt: skip
MORE = [
    gs.CSF(), gs.COO(), gs.CSR(), gs.BSR((2, 3)), gs.Masked(), gs.Format("dense", "dense", "compressed"),
    gs.Format("compressed", "dense", "compressed", order=(2, 0, 1)), gs.Format("dense", "compressed", "dense"),
]  # fmt: skip
DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def any_size():
    with from_so_many(0):
        yield


@contextlib.contextmanager
def from_so_many(entries):
    """Let C do it from so many entries on."""
    before, restack.LEAST = restack.LEAST, entries
    try:
        yield
    finally:
        restack.LEAST = before


NEVER = 1 << 40


def by_torch(x, format):
    """The nonzeros of a dense tensor, stored by the levels' own ``pack``."""
    keys = torch.nonzero(x.reshape(-1)).squeeze(1)
    structure, place = Structure.from_keys(as_format(format), keys, x.shape)
    return build(placed(x.reshape(-1)[keys], place, structure), structure)


def same(got, want):
    got.structure.check(got.values())
    assert got.format == want.format and got.shape == want.shape
    for name, array in want.structure.arrays.items():
        mine = got.structure.arrays[name]
        assert mine.dtype == array.dtype and torch.equal(mine, array), name
    assert got.dtype == want.dtype and torch.equal(got.values(), want.values())


def tensor(*shape, density=0.3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < density)
    x[shape[0] // 3 : shape[0] // 2] = 0
    return x.to(dtype) if dtype != torch.bool else x != 0


@pytest.mark.parametrize(("source", "target"), list(itertools.product(TWO, TWO)), ids=str)
def test_every_pair_of_matrices(source, target):
    x = tensor(37, 23)
    a = by_torch(x, source)
    if source != target:
        assert convert.convert(a.values(), a.structure, target) is not None
    got = a.to_format(target)
    got.structure.check(got.values())
    assert torch.equal(got.to_dense(), x)
    if source.any_pattern:  # else zeros of its blocks are entries
        same(got, by_torch(x, target))


@pytest.mark.parametrize("shape", [(5, 7, 6), (3, 1, 4, 5), (1, 1, 1)])
@pytest.mark.parametrize(("source", "target"), list(itertools.product(MORE, MORE)), ids=str)
def test_every_pair_of_more_dimensions(source, target, shape):
    x = tensor(*shape, density=0.4)
    got = by_torch(x, source).to_format(target)
    got.structure.check(got.values())
    assert torch.equal(got.to_dense(), x)
    if source.any_pattern:
        same(got, by_torch(x, target))


@given(x=dense(dims=(1, 4)), source=blocked() | stacks(), target=blocked() | stacks())
@settings(max_examples=120)  # each may build kernels
def test_any_format_to_any_other(x, source, target):
    try:
        want, a = by_torch(x, target), by_torch(x, source)
    except ValueError:  # more places than integers can number
        return
    same(gs.from_dense(x, target), want)
    got = a.to_format(target)
    got.structure.check(got.values())
    assert torch.equal(got.to_dense(), x)
    if source.any_pattern:
        same(got, want)


@given(
    shape=st.sampled_from([(7, 5), (1, 1), (40,), (3, 4, 5), (1, 30)]),
    entries=st.integers(0, 80),
    seed=st.integers(0, 999),
    format=st.sampled_from(
        [gs.CSR(), gs.CSC(), gs.COO(), gs.CSF(), gs.BSR((2, 3)), gs.ELL(), gs.Masked(), PackedCSR()]
    ),
)
@settings(max_examples=150)
def test_entries_in_any_order_are_sorted_and_duplicates_summed(shape, entries, seed, format):
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randint(torch.Size(shape).numel(), (entries,), generator=generator)
    values = torch.randint(1, 9, (entries,), generator=generator).double()
    got = from_entries(keys, values, shape, format)
    with from_so_many(NEVER):
        same(got, from_entries(keys, values, shape, format))
    want = torch.zeros(torch.Size(shape).numel(), dtype=torch.float64).index_add_(0, keys, values)
    assert torch.equal(got.to_dense(), want.view(shape))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("format", [gs.CSC(), gs.BSR((2, 4)), gs.ELL(), gs.Masked(), PackedCSR()], ids=str)
def test_any_type_of_value(dtype, format):
    x = tensor(33, 45, dtype=dtype)
    a = gs.from_dense(x, gs.CSR())
    same(a, by_torch(x, gs.CSR()))
    assert torch.equal(a.to_format(format).to_dense(), x)
    same(gs.from_dense(x, format), by_torch(x, format))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_duplicates_of_half_precision_are_summed_in_float32(dtype):
    keys = torch.zeros(5000, dtype=torch.int64)
    values = torch.full((5000,), 0.25, dtype=dtype)  # in half precision the sum would stop far below
    for least in (0, NEVER):
        with from_so_many(least):
            assert from_entries(keys, values, (3, 3), gs.CSR()).to_dense()[0, 0] == torch.tensor(1250.0).to(dtype)


def test_nonzeros_are_what_torch_calls_so():
    x = torch.tensor([0.0, -0.0, float("nan"), float("inf"), 1e-45, -1.0] * 20).view(4, 30)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        a = gs.from_dense(x.to(dtype), gs.CSR())
        assert a.nnz == int((x.to(dtype) != 0).sum())


@pytest.mark.parametrize(("source", "target"), [(gs.CSR(), gs.CSC()), (gs.COO(), gs.BSR((2, 3))), (gs.ELL(), gs.CSF())])
def test_gradients_of_gradients(source, target):
    a = by_torch(tensor(6, 9, density=0.6, dtype=torch.float64), source)
    weight = torch.randn(6, 9, dtype=torch.float64)

    def through(values):
        return (build(values, a.structure).to_format(target).to_dense() * weight).sin()

    values = a.values().clone().requires_grad_()
    if source != gs.ELL():  # padding has no gradient, which a difference would not know
        assert torch.autograd.gradcheck(through, (values,))
        assert torch.autograd.gradgradcheck(through, (values,))
    leaf = torch.nn.Parameter(a)
    (leaf.to_format(target).to_dense() * weight).sum().backward()
    assert leaf.grad.structure.same(a.structure)
    assert torch.equal(leaf.grad.to_dense(), (a.to_dense() != 0) * weight)


@pytest.mark.parametrize("format", [gs.CSR(), gs.BSR((2, 3)), gs.Masked()], ids=str)
def test_gradients_of_a_dense_tensor(format):
    x = tensor(6, 9, density=0.5, dtype=torch.float64).requires_grad_()
    weight = torch.randn(6, 9, dtype=torch.float64)
    a = gs.from_dense(x, format)
    (a.to_dense() * weight).sum().backward()
    assert torch.equal(x.grad, a.mask() * weight)


@pytest.mark.parametrize("format", [*TWO, gs.Format("dense", "fixed", order=(1, 0))], ids=str)
def test_entries_are_found_as_torch_finds_them(format):
    a = by_torch(tensor(37, 23), format)
    keys, where = Structure(format, a.shape, a.structure.arrays, a.structure.device).entries()
    with from_so_many(NEVER):
        want = Structure(format, a.shape, a.structure.arrays, a.structure.device).entries()
    assert torch.equal(keys, want.keys) and keys.dtype == want.keys.dtype
    assert (where is None) == (want.where is None) and (where is None or torch.equal(where, want.where))


BLOCKS = gs.BSR((2, 3))


@pytest.mark.parametrize(
    ("source", "target", "modes"),
    [
        (gs.CSR(), gs.COO(), ["in order"]),
        (gs.ELL(), gs.DCSR(), ["in order"]),
        (BLOCKS, gs.CSR(), ["in order"]),  # the rows of a block are walked before its columns
        (gs.CSC(), gs.Dense(), ["in order"]),  # every place is known
        (gs.CSR(), gs.CSC(), ["apart"]),
        (gs.CSC(), gs.ELL(), ["apart"]),
        (gs.CSC(), BLOCKS, ["apart"]),
        (gs.CSR(), PackedCSR(), ["in order"]),  # one tile
        (gs.CSR(), PackedCSR(7), ["apart"]),
        (gs.CSC(), gs.COO(), ["apart", "in order"]),
        (gs.CSR(), gs.Format("compressed", "compressed", order=(1, 0)), ["apart", "in order"]),
        (gs.CSC(), gs.Format("compressed", "fixed"), ["apart", "in order"]),  # with padding
        (gs.CSR(), BLOCKS, ["together"]),
        (gs.COO(), BLOCKS, ["together"]),
        (PackedCSR(), gs.CSR(), []),  # in no order: sorted
    ],
    ids=str,
)
def test_only_what_needs_a_sort_is_sorted(source, target, modes, monkeypatch):
    stored, seen = streaming._stored, []

    def look(source, layout, mode, values):
        seen.append(mode)
        return stored(source, layout, mode, values)

    x = tensor(37, 23)
    a = by_torch(x, source)
    monkeypatch.setattr(streaming, "_stored", look)
    got = a.to_format(target)
    assert seen == modes
    leaf = torch.nn.Parameter(a)  # values that have a gradient are moved afterwards
    also = leaf.to_format(target)
    monkeypatch.undo()
    if target == gs.Dense():
        assert torch.equal(got, x) and torch.equal(also, x)
        return
    with from_so_many(NEVER):
        same(got, a.to_format(target))
    same(also.detach(), got)


def test_more_rows_than_are_worth_counting_are_sorted(monkeypatch):
    keys = torch.tensor([2**20, 5, 2**22, 77])
    a = from_entries(keys, torch.arange(1.0, 5), (2**20, 5), gs.CSC())
    monkeypatch.setattr(streaming, "_stored", None)  # it would count a million rows for four entries
    got = a.to_format(gs.COO())
    got.structure.check(got.values())
    assert got.values().tolist() == [2.0, 4.0, 1.0, 3.0]


def test_memory_of_its_own():
    a = gs.from_dense(tensor(20, 30), gs.CSR())
    for target in TWO[1:]:
        a.to_format(target).values().zero_()
    assert a.values().abs().sum() > 0


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 10), (3, 32), (1, 16), (2, 15)])
@pytest.mark.parametrize("shape", [(16, 64), (37, 50), (1, 3), (33, 97)])
def test_packed_n_of_m(n, m, shape):
    x = gs.sparsify(torch.randn(shape), gs.NM(n, m), format=gs.Dense())
    for format in (PackedNM(n, m), PackedNM(n, m, order=(1, 0))):
        x = x if format.order is None else x.T.contiguous()
        want = by_torch(x, format)
        same(gs.from_dense(x, format), want)
        same(want.to_format(gs.CSC()), by_torch(x, gs.CSC()))
        same(by_torch(x, gs.COO()).to_format(format), want)


def test_a_level_that_does_not_hold_it_refuses():
    x = torch.ones(20, 40)
    with pytest.raises(ValueError, match="a row needs 40 places, but the level has a width of 3"):
        gs.from_dense(x, gs.ELL(3))
    with pytest.raises(ValueError, match="at most"):
        gs.from_dense(x, PackedNM(2, 4))
    one_part = torch.zeros(16, 32)
    one_part[0, :3] = 1  # fits into the window, not into its first four columns
    with pytest.raises(ValueError, match="a row keeps 3 of 4 columns, at most 2 of each 4 fit"):
        gs.from_dense(one_part, PackedNM(2, 4))
    with pytest.raises(ValueError, match="a singleton level needs one entry below each parent"):
        gs.from_dense(x, gs.Format("compressed", "singleton"))


def test_keys_of_64_bits():
    shape = (2**20, 2**20, 2**20)
    keys = torch.tensor([2**60 - 1, 5, 2**41, 5])
    got = from_entries(keys, torch.ones(4), shape, gs.CSF())
    assert got.nnz == 3 and got.values().tolist() == [2.0, 1.0, 1.0]
    too_wide = (2**21 - 1,) * 3  # 63 bits
    assert from_entries(keys % 2**40, torch.ones(4), too_wide, gs.COO()).nnz == 3
    narrow = (3, 2**61 // 3)  # as numbers they fit, side by side as bits they do too; five of them would not
    assert from_entries(torch.tensor([1, 0]), torch.ones(2), narrow, gs.COO()).nnz == 2
    assert convert.from_entries(torch.tensor([1, 0]), torch.ones(2), (5,) * 27, gs.COO()) is None  # 81 bits


def test_what_is_left_to_torch(monkeypatch):
    a = gs.from_dense(tensor(20, 30), gs.CSR())
    monkeypatch.setattr(restack, "available", lambda: False)
    assert convert.convert(a.values(), a.structure, gs.CSC()) is None
    assert torch.equal(a.to_format(gs.CSC()).to_dense(), a.to_dense())
    monkeypatch.undo()
    with from_so_many(4096):
        assert convert.convert(a.values(), a.structure, gs.CSC()) is None
    assert convert.convert(a.values(), a.structure, gs.CSC()) is not None
    assert (
        convert.convert(a.values(), a.structure, gs.formats.PackedVNM("all", 2, 4)) is None
    )  # its level has no ``store``


_SAME = """
import torch, gossamer as gs, hashlib
g = torch.Generator().manual_seed(0)
keys, values = torch.randint(10**5, (20000,), generator=g), torch.randn(20000, generator=g)
total = hashlib.sha256()
t = gs.core.join.from_entries(keys, values, (250, 400), gs.COO())
for f in (gs.CSR(), gs.CSC(), gs.BSR((4, 5)), gs.ELL(), gs.formats.PackedCSR(), gs.CSF(), gs.Masked()):
    t = t.to_format(f)
    for x in (t.values(), *t.structure.arrays.values()):
        total.update(x.numpy().tobytes())
print(total.hexdigest())
"""


def test_neither_threads_nor_hash_seeds_change_a_bit():
    seen = set()
    for threads, seed in (("1", "0"), ("2", "1")):
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", _SAME], env=environment, capture_output=True, text=True, check=True
        )
        seen.add(done.stdout)
    assert len(seen) == 1


_ASAN = """
import torch, gossamer as gs
from gossamer.compiler.run import runtime
from gossamer.compiler.convert import restack
from gossamer.formats import PackedCSR
runtime.FLAGS = (*runtime.FLAGS, "-fsanitize=address")
restack.LEAST = 0
formats = (gs.CSR(), gs.CSC(), gs.COO(), gs.BSR((2, 3)), gs.ELL(), gs.COO(), PackedCSR(1), PackedCSR(7, order=(1, 0)),
           gs.Masked(), gs.CSC(), gs.BSR((2, 3)), gs.CSC())
for shape in ((37, 23), (1, 1), (16, 64)):
    x = torch.randn(shape) * (torch.rand(shape) < 0.3)
    for first, second in zip(formats, formats[1:]):
        a = gs.from_dense(x, first)
        assert torch.equal(a.to_format(second).to_dense(), x)
keys = torch.randint(30, (50,))
assert gs.core.join.from_entries(keys, torch.ones(50), (5, 6), gs.CSR()).to_dense().sum() == 50
print("whole")
"""


def test_nothing_is_touched_outside_of_its_arrays(tmp_path):
    compiler = native.compiler()
    found = subprocess.run([*compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    library = found.stdout.strip()
    if not os.path.isabs(library):
        pytest.skip("no address sanitizer")
    environment = {
        **os.environ,
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0",
        "GOSSAMER_CACHE": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", _ASAN], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "whole\n", done.stderr[-3000:]
