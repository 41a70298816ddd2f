"""Packed formats: exact there and back, small, and no broken promise gets in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gossamer as gs
from gossamer.formats import Condensed, PackedCSR, PackedGroupedNM, PackedNM, as_format


@given(
    rows=st.integers(0, 70), cols=st.integers(0, 300), seed=st.integers(0, 99), tile=st.sampled_from([1, 7, 128, 254])
)
def test_any_pattern_there_and_back(rows, cols, seed, tile):
    dense = torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed))
    dense = dense * (torch.rand(rows, cols, generator=torch.Generator().manual_seed(seed + 1)) < 0.2)
    packed = gs.from_dense(dense, PackedCSR(tile))
    assert torch.equal(packed.to_dense(), dense)
    assert packed.nnz == int((dense != 0).sum())
    packed.structure.check(packed._values)


@given(
    rows=st.integers(1, 70), cols=st.integers(1, 100), n=st.integers(1, 3), m=st.sampled_from([3, 4, 10, 32, 33, 60])
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


def test_more_than_n_of_m_is_refused():
    with pytest.raises(ValueError, match="a row keeps 2 of 4 columns, at most 1 of each 4 fit"):
        gs.from_dense(torch.tensor([[1.0, 2, 0, 0]]), PackedNM(1, 4))


@pytest.mark.parametrize(
    "format", [PackedCSR(), PackedCSR(240), Condensed(), PackedNM(2, 4), PackedGroupedNM(1, 8, 16)]
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


@pytest.mark.parametrize(("sparsity", "most"), [("90%", 0.16), ("95%", 0.08)])
def test_small(sparsity, most):
    weight = gs.sparsify(torch.randn(768, 768), sparsity, format=PackedCSR())
    assert weight.nbytes <= most * 768 * 768 * 4


def damage(name, place, value):
    def change(arrays, values):
        arrays[name][place] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage("crd2", 0, 5), "every coordinate once"),
        (damage("pos3", 0, 1), "pos starts at 1"),
        (damage("pos3", -1, 99), "pos ends at 99"),
        (damage("crd3", 0, 200), "outside 0 .. 128"),
        (lambda a, v: v.__setitem__(a["crd3"] == 128, 1.0), "not zero"),
        (lambda a, v: a["crd3"].view(-1, 16)[:2].fill_(3), "there twice"),
    ],
)
def test_outside_arrays_are_checked(change, message):
    t = gs.sparsify(torch.randn(20, 100), "80%", format=PackedCSR())
    arrays, values = {k: a.clone() for k, a in t.structure.arrays.items()}, t.values().clone()
    gs.SparseTensor.from_arrays(PackedCSR(), (20, 100), values, arrays)
    change(arrays, values)
    with pytest.raises(ValueError, match=message):
        gs.SparseTensor.from_arrays(PackedCSR(), (20, 100), values, arrays)


def test_other_operators_work_on_them():
    dense = gs.sparsify(torch.randn(20, 64), "2:4", format=gs.Dense())
    t = gs.from_dense(dense, PackedNM(2, 4))
    assert torch.equal((t * 2).to_dense(), dense * 2)
    torch.testing.assert_close(t @ torch.ones(64), dense @ torch.ones(64))
    assert torch.equal(t.to_format(gs.CSR()).to_dense(), dense)
    torch.testing.assert_close(t.sum(), dense.sum())
