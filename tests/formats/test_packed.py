"""Packed formats: exact there and back, small, and no broken promise gets in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gossamer as gs
from gossamer.formats import Condensed, PackedCSR, PackedGroupedNM, PackedNear, PackedNM, as_format


@given(
    rows=st.integers(0, 70),
    cols=st.integers(0, 300),
    seed=st.integers(0, 99),
    tile=st.sampled_from([1, 7, 128, 254]),
    kind=st.sampled_from([PackedCSR, PackedNear]),
    density=st.sampled_from([0.02, 0.2, 0.6]),
)
def test_any_pattern_there_and_back(rows, cols, seed, tile, kind, density):
    dense = torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed))
    dense = dense * (torch.rand(rows, cols, generator=torch.Generator().manual_seed(seed + 1)) < density)
    packed = gs.from_dense(dense, kind(tile))
    assert torch.equal(packed.to_dense(), dense)
    assert packed.nnz == int((dense != 0).sum())
    packed.structure.check(packed._values)


@given(
    rows=st.integers(1, 70),
    cols=st.integers(1, 100),
    n=st.integers(1, 3),
    m=st.sampled_from([3, 4, 10, 15, 16, 32, 33, 60]),
)
def test_n_of_m_there_and_back(rows, cols, n, m):
    dense = gs.sparsify(torch.randn(rows, cols), gs.NM(n, m), format=gs.Dense())
    packed = gs.from_dense(dense, PackedNM(n, m))
    assert torch.equal(packed.to_dense(), dense)
    packed.structure.check(packed._values)


def test_by_hand():
    """A 2 x 4 matrix whose two rows are the first lanes of one group; the fuller row comes first."""
    t = gs.from_dense(torch.tensor([[0.0, 1, 0, 0], [2, 0, 0, 3]]), PackedCSR())
    arrays = t.structure.arrays
    assert arrays["crd2"][:3].tolist() == [1, 0, 2]
    assert arrays["pos3"].tolist() == [0, 2]
    assert t.values().view(2, 16)[:, :3].tolist() == [[2, 1, 0], [3, 0, 0]]
    assert arrays["crd3"].view(2, 16)[:, :3].tolist() == [[0, 1, 128], [3, 128, 128]]


def test_near_by_hand():
    """Columns 0, 15, 30 and 34: 1 ahead of -1, then 15, a step that has no value and one that goes no further, ..."""
    dense = torch.zeros(2, 40)
    dense[0, [0, 15, 30, 34]], dense[1, 14] = torch.arange(1.0, 5), 9.0
    t = gs.from_dense(dense, PackedNear())
    arrays = t.structure.arrays
    assert arrays["pos3"].tolist() == [0, 6]
    halves = torch.stack([arrays["crd3"].view(3, 16) & 15, arrays["crd3"].view(3, 16) >> 4], 1).view(6, 16)
    assert halves[:, :3].T.tolist() == [[1, 15, 0, 15, 0, 4], [15, 0, 0, 0, 0, 0], [0] * 6]
    assert t.values().view(6, 16)[:, :2].T.tolist() == [[1, 0, 2, 0, 3, 4], [0, 9, 0, 0, 0, 0]]
    assert torch.equal(t.to_dense(), dense) and t.nnz == 5


def test_two_columns_of_n_of_m_share_a_byte():
    """Row 0 keeps columns 1, 2 and 7 of a window of twelve: 2:4 has six places there, the last three unused."""
    dense = torch.zeros(1, 12)
    dense[0, [1, 2, 7]] = torch.tensor([1.0, 2, 3])
    t = gs.from_dense(dense, PackedNM(2, 4))
    assert t.values().view(6, 16)[:, 0].tolist() == [1, 2, 3, 0, 0, 0]
    assert [hex(b) for b in t.structure.arrays["crd3"].view(3, 16)[:, 0].tolist()] == ["0x21", "0xc7", "0xcc"]


def test_more_than_n_of_m_is_refused():
    with pytest.raises(ValueError, match="a row keeps 2 of 4 columns, at most 1 of each 4 fit"):
        gs.from_dense(torch.tensor([[1.0, 2, 0, 0]]), PackedNM(1, 4))


@pytest.mark.parametrize(
    "format", [PackedCSR(), PackedCSR(240), PackedNear(), Condensed(), PackedNM(2, 4), PackedGroupedNM(1, 8, 16)]
)
def test_prints_and_reads_back(format):
    assert as_format(repr(format)) == format


def test_formats_differ_by_what_they_promise():
    assert PackedCSR() != Condensed() and PackedNM(2, 4) != PackedNM(4, 8) and PackedCSR() != PackedCSR(64)


@pytest.mark.parametrize(
    "make", [lambda: PackedNM(0, 4), lambda: PackedNM(2, 255), lambda: PackedCSR(255), lambda: PackedGroupedNM(1, 4, 0)]
)
def test_wrong_parameters(make):
    with pytest.raises(ValueError, match=r"must|needs"):
        make()


@pytest.mark.parametrize(
    ("how", "format", "most"),
    [
        ("90%", PackedCSR(), 0.14),
        ("95%", PackedCSR(), 0.08),
        ("50%", PackedNear(), 0.59),
        ("fan-in 50%", PackedNear(), 0.59),
        ("2:4", PackedNM(2, 4), 0.57),
        ("2:4:g8", PackedGroupedNM(2, 4, 8), 0.57),
        ("1:2", PackedNM(1, 2), 0.58),
        ("5:10", PackedNM(5, 10), 0.58),
        ("1:10:g8", PackedGroupedNM(1, 10, 8), 0.12),
    ],
    ids=str,
)
def test_small(how, format, most):
    weight = gs.sparsify(torch.randn(768, 768), how, format=format)
    assert weight.nbytes <= most * 768 * 768 * 4


def damage(name, place, value):
    def change(arrays, values):
        arrays[name][place] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage("crd2", 0, 5), "every coordinate once"),
        (damage("pos3", 0, 1), "a position belongs to two parents, or to none"),
        (damage("pos3", -1, 99), "crd has 672 entries, must have 1584"),
        (damage("crd3", 0, 200), "outside 0 .. 128"),
        (lambda a, v: v.__setitem__(a["crd3"] == 128, 1.0), "not zero"),
        (lambda a, v: a["crd3"].view(-1, 16)[:2].fill_(3), "occurs twice"),
    ],
)
def test_outside_arrays_are_checked(change, message):
    t = gs.sparsify(torch.randn(20, 100), "80%", format=PackedCSR())
    arrays, values = {k: a.clone() for k, a in t.structure.arrays.items()}, t.values().clone()
    gs.SparseTensor.from_arrays(PackedCSR(), (20, 100), values, arrays)
    change(arrays, values)
    with pytest.raises(ValueError, match=message):
        gs.SparseTensor.from_arrays(PackedCSR(), (20, 100), values, arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage("pos3", 1, 1), "odd number"),
        (damage("pos3", -1, 98), "crd has 352 entries, must have 784"),
        (lambda a, v: a["crd3"][::16].fill_(0xEE), "outside 0 .. 127"),
        (lambda a, v: a["crd3"][-16:].fill_(0xF0), "moves on at the end"),
        (lambda a, v: v.fill_(1.0), "not zero"),
    ],
)
def test_near_arrays_are_checked(change, message):
    t = gs.sparsify(torch.randn(20, 100), "80%", format=PackedNear())
    arrays, values = {k: a.clone() for k, a in t.structure.arrays.items()}, t.values().clone()
    gs.SparseTensor.from_arrays(PackedNear(), (20, 100), values, arrays)
    change(arrays, values)
    with pytest.raises(ValueError, match=message):
        gs.SparseTensor.from_arrays(PackedNear(), (20, 100), values, arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage("crd3", 0, 0x1D), "outside 0 .. 12"),
        (lambda a, v: a.__setitem__("crd3", a["crd3"][:-16].clone()), "crd has 848 entries, must have 864"),
        (lambda a, v: v.fill_(1.0), "not zero"),
    ],
)
def test_arrays_of_n_of_m_are_checked(change, message):
    t = gs.sparsify(torch.randn(20, 100), "2:4", format=PackedNM(2, 4))
    arrays, values = {k: a.clone() for k, a in t.structure.arrays.items()}, t.values().clone()
    gs.SparseTensor.from_arrays(PackedNM(2, 4), (20, 100), values, arrays)
    change(arrays, values)
    with pytest.raises(ValueError, match=message):
        gs.SparseTensor.from_arrays(PackedNM(2, 4), (20, 100), values, arrays)


def test_other_operators_work_on_them():
    dense = gs.sparsify(torch.randn(20, 64), "2:4", format=gs.Dense())
    t = gs.from_dense(dense, PackedNM(2, 4))
    assert torch.equal((t * 2).to_dense(), dense * 2)
    torch.testing.assert_close(t @ torch.ones(64), dense @ torch.ones(64))
    assert torch.equal(t.to_format(gs.CSR()).to_dense(), dense)
    torch.testing.assert_close(t.sum(), dense.sum())
