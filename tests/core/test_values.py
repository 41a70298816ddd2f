"""Values to and from dense, and entries: compiled kernels and torch agree."""

import pytest
import torch
from hypothesis import given, settings

import gossamer as gs
from gossamer.core import values
from gossamer.core.values import entries, read, scatter
from tests.formats import _draw

X = [[0.0, 2.0, 0.0, 0.0], [3.0, 0.0, 0.0, 4.0]]


def csr():
    return gs.from_dense(torch.tensor(X), gs.CSR())


def test_scatter_read_and_entries_by_hand():
    structure = csr().structure
    assert scatter(torch.tensor([5.0, 6.0, 7.0]), structure).tolist() == [[0, 5, 0, 0], [6, 0, 0, 7]]
    assert read(torch.arange(8.0).view(2, 4), structure).tolist() == [1.0, 4.0, 7.0]
    keys, where = entries(structure)
    assert keys.tolist() == [1, 4, 7] and where is None


def test_padding_is_no_entry_and_reads_as_zero():
    t = gs.from_dense(torch.tensor(X), gs.ELL())
    keys, where = entries(t.structure)
    assert keys.tolist() == [1, 4, 7] and where.tolist() == [0, 2, 3]  # row 0 has one entry and two places
    assert read(torch.full((2, 4), 9.0), t.structure).reshape(-1).tolist() == [9.0, 0.0, 9.0, 9.0]


def test_entries_of_csc_are_in_storage_order():
    t = gs.from_dense(torch.tensor(X), gs.CSC())
    assert entries(t.structure).keys.tolist() == [4, 1, 7]


@pytest.mark.parametrize("size", [(5, 7), (150, 100)], ids=["too small to compile", "compiled"])
@pytest.mark.parametrize("format", [gs.CSR(), gs.CSC(), gs.ELL(), gs.Masked()], ids=repr)
def test_compiled_and_torch_give_the_same(format, size, monkeypatch):
    x = torch.randn(size, dtype=torch.float64) * (torch.rand(size) < 0.6)
    full = torch.randn(size[::-1], dtype=torch.float64).t()  # not contiguous

    def everything():
        structure = gs.from_dense(x, format).structure  # another one: entries are kept with a structure
        taken = read(full, structure)
        return entries(structure).keys, taken, scatter(taken, structure)

    one = everything()
    for name in ("scatter", "gather", "entries"):
        monkeypatch.setattr(values.compiled, name, lambda *args: None)
    other = everything()
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert torch.equal(one[2], torch.where(gs.from_dense(x, format).mask(), full, 0))


@settings(max_examples=15)
@given(_draw.dense())
def test_scatter_undoes_read(x):
    structure = gs.from_dense(x, gs.COO()).structure
    assert torch.equal(scatter(read(x, structure), structure), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_the_type_is_kept(dtype):
    structure = csr().structure
    stored = read(torch.ones(2, 4, dtype=dtype), structure)
    assert stored.dtype is dtype and scatter(stored, structure).dtype is dtype
    assert scatter(stored, structure).tolist() == [[0, 1, 0, 0], [1, 0, 0, 1]]
