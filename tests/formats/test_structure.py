"""Every format stores every tensor exactly: by hand on a small one, then any tensor in any stack."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import gossamer as gs
from gossamer.core.join import from_entries
from gossamer.formats.keys import ravel, unravel
from gossamer.formats.structure import Structure, matrix_sizes
from tests.formats import _draw

X = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 4.0]])

# -- by hand


def test_csr_by_hand() -> None:
    t = gs.from_dense(X, gs.CSR())
    assert t.structure.arrays["pos1"].tolist() == [0, 2, 2, 4]
    assert t.structure.arrays["crd1"].tolist() == [1, 3, 0, 3]
    assert t.structure.entries().keys.tolist() == [1, 3, 8, 11] and t.structure.entries().where is None
    assert t.structure.value_shape == (4,) and t.structure.valid() is None and t.nnz == 4


@pytest.mark.parametrize(
    ("levels", "order", "shape", "arrays"),
    [
        (("compressed", "dense"), None, (2, 4), {"pos0": [0, 2], "crd0": [0, 2]}),
        (("dense", "dense"), None, (3, 4), {}),
        (("bitmap", "compressed"), None, (4,), {"mask0": [1, 0, 1], "pos1": [0, 2, 2, 4], "crd1": [1, 3, 0, 3]}),
        (("compressed", "compressed"), (1, 0), (4,),
         {"pos0": [0, 3], "crd0": [0, 1, 3], "pos1": [0, 1, 2, 4], "crd1": [2, 0, 0, 2]}),
        (("compressed-nonunique", "singleton"), None, (4,),
         {"pos0": [0, 4], "crd0": [0, 0, 2, 2], "crd1": [1, 3, 0, 3]}),
    ],
)  # fmt: skip
def test_stacks_by_hand(levels: tuple, order: tuple | None, shape: tuple, arrays: dict) -> None:
    t = gs.from_dense(X, gs.Format(*levels, order=order))
    assert {k: a.int().tolist() for k, a in t.structure.arrays.items()} == arrays
    assert tuple(t.values().shape) == t.structure.value_shape == shape
    assert torch.equal(t.to_dense(), X)


def test_hybrid_coordinates_store_each_fibre_once() -> None:
    x = torch.tensor([[[1.0, 2.0], [0.0, 0.0]], [[0.0, 3.0], [4.0, 0.0]]])
    t = gs.from_dense(x, gs.Format("compressed-nonunique", "singleton", "dense"))
    assert t.values().tolist() == [[1.0, 2.0], [0.0, 3.0], [4.0, 0.0]]
    assert t.structure.arrays["crd0"].tolist() == [0, 1, 1] and t.structure.arrays["crd1"].tolist() == [0, 0, 1]
    assert not t.format.any_pattern and t.nnz == 6


def test_same_pattern() -> None:
    a, b = gs.from_dense(X, gs.CSR()), gs.from_dense(2 * X, gs.CSR())
    assert a.structure.same(b.structure) and a.structure is not b.structure
    assert not a.structure.same(gs.from_dense(X, gs.CSC()).structure)
    assert not a.structure.same(gs.from_dense(X.flip(0), gs.CSR()).structure)
    assert not a.structure.same(gs.from_dense(X[:2], gs.CSR()).structure)


def test_ravel_and_unravel() -> None:
    keys = torch.tensor([0, 7, 23])
    coords = unravel(keys, (2, 3, 4))
    assert [c.tolist() for c in coords] == [[0, 0, 1], [0, 1, 2], [0, 3, 3]]
    assert ravel(coords, (2, 3, 4)).tolist() == [0, 7, 23]
    assert [matrix_sizes(s) for s in ((), (3,), (2, 3), (2, 3, 4))] == [(1, 1), (1, 3), (2, 3), (2, 12)]


def test_sizes_beyond_32_bits_take_64_bit_indices() -> None:
    structure, _ = Structure.from_keys(gs.COO(), torch.tensor([5, 2**40]), (2**41,))
    assert structure.arrays["crd0"].dtype == torch.int64
    view = structure.matrix()
    assert view.crd.tolist() == [5, 2**40] and view.pos.tolist() == [0, 2]
    deep, _ = Structure.from_keys(gs.COO(), torch.tensor([2**40 - 1]), (4, 2**19, 2**19))
    assert deep.arrays["crd0"].dtype == torch.int32 and deep.matrix().crd.tolist() == [2**38 - 1]


# -- any tensor, any format


@given(_draw.dense(), _draw.formats())
def test_round_trip(x: torch.Tensor, format: gs.Format) -> None:
    t = gs.from_dense(x, format)
    assert torch.equal(t.to_dense(), x) and t.shape == x.shape
    t.structure.check(t.values())
    keys, where = t.structure.entries()
    flat = t.values().reshape(-1)
    assert t.nnz == keys.numel() == keys.unique().numel()
    assert torch.equal(flat if where is None else flat[where], x.reshape(-1)[keys])
    if format.any_pattern:
        assert torch.equal(keys.sort().values, torch.nonzero(x.reshape(-1)).squeeze(1))
    valid = t.structure.valid()
    assert valid is None or (valid.shape == flat.view(t.structure.value_shape).shape and int(valid.sum()) == t.nnz)
    assert torch.equal(t.mask().reshape(-1).nonzero().squeeze(1), keys.sort().values)


@given(_draw.dense(), _draw.formats())
def test_raw_arrays_come_back(x: torch.Tensor, format: gs.Format) -> None:
    t = gs.from_dense(x, format)
    back = gs.SparseTensor.from_arrays(format, x.shape, t.values(), t.structure.arrays)
    assert back.structure.same(t.structure) and torch.equal(back.to_dense(), x)


@given(_draw.dense(), _draw.formats(), _draw.formats())
def test_conversion_is_exact(x: torch.Tensor, one: gs.Format, two: gs.Format) -> None:
    assert torch.equal(gs.from_dense(x, one).to_format(two).to_dense(), x)


@given(_draw.dense(), _draw.formats(), _draw.formats())
def test_conversion_keeps_stored_zeros(x: torch.Tensor, one: gs.Format, two: gs.Format) -> None:
    assume(one.any_pattern and two.any_pattern)
    keys = torch.nonzero(x.reshape(-1)).squeeze(1)
    a = from_entries(keys, torch.zeros(keys.numel()), x.shape, one)
    b = a.to_format(two)
    assert a.nnz == b.nnz == keys.numel()
    assert torch.equal(b.mask(), x != 0)


@given(_draw.dense(), _draw.formats())
def test_matrix_view(x: torch.Tensor, format: gs.Format) -> None:
    t = gs.from_dense(x, format)
    assert torch.equal(_draw.matrix_to_dense(t), x.reshape(matrix_sizes(x.shape)))


@given(_draw.dense((2, 2)), _draw.formats())
def test_transposed_moves_no_value(x: torch.Tensor, format: gs.Format) -> None:
    flipped = format.transposed()
    assume(flipped is not None)
    t = gs.from_dense(x, format)
    turned = gs.SparseTensor.from_arrays(flipped, tuple(x.t().shape), t.values(), t.structure.arrays)
    assert torch.equal(turned.to_dense(), x.t())
    assert flipped == gs.COO() or flipped.transposed() == format.named()  # COO sorts its entries by rows


@given(_draw.dense(), _draw.formats())
def test_places(x: torch.Tensor, format: gs.Format) -> None:
    """What traces use instead of the entries: every place, padding at 0."""
    t = gs.from_dense(x, format)
    assume(x.numel())
    keys, valid = t.structure.places()
    out = torch.zeros(x.numel(), dtype=x.dtype).index_put((keys,), t.values().reshape(-1), accumulate=True)
    assert torch.equal(out.view(x.shape), x)
    assert valid is None or int(valid.sum()) == t.nnz


@given(st.lists(st.integers(0, 59), unique=True), _draw.formats())
def test_entries_in_any_order(keys: list[int], format: gs.Format) -> None:
    values = torch.arange(1.0, len(keys) + 1)
    t = from_entries(torch.tensor(keys, dtype=torch.long), values, (3, 4, 5), format)
    want = torch.zeros(60)
    want[torch.tensor(keys, dtype=torch.long)] = values
    assert torch.equal(t.to_dense().reshape(-1), want)


# -- traces

TRACED = (gs.CSR(), gs.CSC(), gs.COO(), gs.DCSR(), gs.CSF(), gs.ELL(), gs.ELL(9), gs.Masked(), gs.BSR((2, 2)),
          gs.BSR((2, 3), order=(1, 0)), gs.BSR((3, 4)))  # fmt: skip


@pytest.mark.parametrize("format", TRACED, ids=repr)
def test_structures_can_be_traced(format: gs.Format) -> None:
    torch._dynamo.reset()
    x = torch.randn(4, 6) * (torch.rand(4, 6) < 0.5)
    t = gs.from_dense(x, format)

    def look(t: gs.SparseTensor) -> tuple[torch.Tensor, ...]:
        s = t.structure
        view, flat = s.matrix(), t.values().reshape(-1)
        values = flat if view.index is None else flat[view.index]
        valid = s.valid()
        return view.pos, view.crd, values, flat.new_ones(()) if valid is None else valid, *s.places()[:1]

    pos, crd, values, _, _ = torch.compile(look, fullgraph=True, backend="eager")(t)
    transposed = t.structure.matrix().transposed
    shape = (6, 4) if transposed else (4, 6)
    row = torch.repeat_interleave(torch.arange(shape[0]), pos.diff())
    out = torch.zeros(shape).index_put((row, crd.long()), values, accumulate=True)
    assert torch.equal(out.t() if transposed else out, x)
    assert torch.equal(torch.compile(lambda t: t.to_dense(), fullgraph=True, backend="eager")(t), x)
