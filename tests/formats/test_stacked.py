"""Stacks of matrices: the arrays of each, one after the other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer as gs
from gossamer.formats import Stacked, as_format
from gossamer.formats.stacked import matrices

F = gs.formats
INNER = [
    gs.CSR(), gs.CSC(), gs.DCSR(), gs.COO(), gs.BSR((2, 3)), F.PackedCSR(), F.PackedCSR(240), F.PackedNear(),
    F.Condensed(), F.PackedCSR(order=(1, 0)), F.PackedNM(2, 4), gs.Format("bitmap", "compressed"),
    gs.Format("dense", "bitmap"), gs.Format("compressed", "dense"),
]  # fmt: skip


def stack(shape, seed=0, inner=None):
    rng = torch.Generator().manual_seed(seed)
    dense = torch.randn(shape, generator=rng) * (torch.rand(shape, generator=rng) < 0.3)
    if isinstance(inner, F.PackedNM):
        dense = torch.where(torch.arange(shape[2]) % 4 < 2, dense, 0)
    return dense


def test_by_hand():
    dense = torch.tensor([[[0.0, 5.0], [0.0, 0.0]], [[6.0, 7.0], [0.0, 8.0]]])
    t = gs.from_dense(dense, Stacked(gs.CSR()))
    assert t.values().tolist() == [5, 6, 7, 8]
    assert t.structure.arrays["pos2"].tolist() == [0, 1, 1, 3, 4]
    assert t.structure.arrays["crd2"].tolist() == [1, 0, 1, 1]
    first, second = matrices(t.structure)
    assert (first.start, first.stop, second.start, second.stop) == (0, 1, 1, 4)
    assert second.structure.arrays["pos1"].tolist() == [0, 2, 3]
    assert second.structure.arrays["crd1"].tolist() == [0, 1, 1]


@pytest.mark.parametrize("inner", INNER, ids=str)
@pytest.mark.parametrize(
    "shape", [(3, 10, 12), (1, 1, 1), (2, 7, 5), (4, 400, 9), (2, 3, 300), (0, 4, 4), (2, 0, 4), (2, 4, 0)]
)
def test_a_stack_has_what_each_matrix_has_alone(inner, shape):
    dense = stack(shape, inner=inner)
    t = gs.from_dense(dense, Stacked(inner))
    assert torch.equal(t.to_dense(), dense)
    t.structure.check(t._values)
    parts = matrices(t.structure)
    assert len(parts) == shape[0]
    for matrix, part in zip(dense, parts, strict=True):
        alone = gs.from_dense(matrix.contiguous(), inner)
        assert part.structure.same(alone.structure)
        own = t._values.reshape(-1)[part.start : part.stop].view(part.structure.value_shape)
        assert torch.equal(own, alone._values)
    assert (parts[-1].stop if parts else 0) == t._values.numel()


def test_ell_is_as_wide_as_its_fullest_row_so_its_matrices_are_not_handed_out():
    dense = torch.stack([torch.eye(3), torch.ones(3, 3)])
    t = gs.from_dense(dense, Stacked(gs.ELL()))
    assert matrices(t.structure) is None
    assert torch.equal(t[0].to_dense(), dense[0])
    x = torch.ones(2, 4, 3)
    assert torch.equal(torch.bmm(x, t), torch.bmm(x, dense))


def test_coordinates_are_not_copied():
    t = gs.from_dense(stack((4, 64, 256)), Stacked(F.PackedCSR()))
    whole = t.structure.arrays["crd4"]
    for part in matrices(t.structure):
        assert part.structure.arrays["crd3"].untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 5),
    st.integers(0, 40),
    st.integers(0, 40),
    st.sampled_from([i for i in INNER if i.any_pattern]),
    st.integers(0, 99),
)
def test_any_size_comes_back(count, rows, columns, inner, seed):
    dense = stack((count, rows, columns), seed)
    t = gs.from_dense(dense, Stacked(inner))
    assert torch.equal(t.to_dense(), dense)
    assert torch.equal(t.to_format(gs.COO()).to_format(Stacked(inner)).to_dense(), dense)
    assert t.nnz == gs.from_dense(dense, gs.COO()).nnz or not isinstance(inner, gs.CSR)


@pytest.mark.parametrize("inner", INNER, ids=str)
def test_the_printed_form_is_read_again(inner):
    assert as_format(str(Stacked(inner))) == Stacked(inner)
    assert Stacked(inner) != inner and hash(Stacked(inner)) == hash(as_format(str(Stacked(inner))))
    assert Stacked(gs.CSR()) != Stacked(gs.CSC())


def test_what_is_no_format_of_matrices_is_refused():
    with pytest.raises(ValueError, match="a format of matrices"):
        Stacked(Stacked(gs.CSR()))
    with pytest.raises(ValueError, match="unknown format"):
        as_format("Stacked(Nothing())")
    with pytest.raises(ValueError, match="unknown format"):
        as_format("Stacked(" * 50 + ")" * 50)


def test_general_and_transposed():
    assert Stacked(gs.CSR()).transposed() is None and Stacked(F.PackedNM(2, 4)).general() == gs.CSR()
    assert not Stacked(F.PackedNM(2, 4)).any_pattern and Stacked(gs.CSR()).any_pattern
