"""Which conversions need no sort, and what they store: by the interpreter, without a compiler."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.convert import streaming
from gossamer.compiler.convert.layout import Layout
from gossamer.compiler.convert.reading import source_of
from gossamer.compiler.convert.restack import target_of
from gossamer.formats import Structure
from tests.compiler.convert.interpreted import interpreted

X = torch.tensor([[0.0, 3.0, 0.0], [4.0, 5.0, 0.0], [0.0, 0.0, 0.0], [0.0, 6.0, 7.0]])


def structure(format):
    keys = torch.nonzero(X.view(-1)).squeeze(1)
    return Structure.from_keys(format, keys, X.shape)[0]


def streamed(source, target, values=None):
    layout = Layout.of(target_of(target, tuple(X.shape)))
    with interpreted():
        return streaming.stream(source_of(structure(source)), layout, values)


def test_rows_to_columns_by_hand():
    made = streamed(gs.CSR(), gs.CSC())
    assert made.arrays["pos1"].tolist() == [0, 1, 4, 5] and made.arrays["crd1"].tolist() == [1, 0, 1, 3, 3]
    assert made.where.tolist() == [1, 0, 2, 3, 4] and made.place is None and (made.entries, made.places) == (5, 5)


def test_values_come_along():
    made = streamed(gs.CSR(), gs.CSC(), torch.tensor([3.0, 4, 5, 6, 7]))
    assert made.values.tolist() == [4, 3, 5, 6, 7] and made.where is None
    padded = streamed(gs.CSR(), gs.ELL(), torch.tensor([3.0, 4, 5, 6, 7]))
    assert padded.values.tolist() == [3, 0, 4, 5, 0, 0, 6, 7]


def test_by_way_of_dense_levels_where_parents_have_no_place():
    made = streamed(gs.CSC(), gs.COO(), torch.tensor([4.0, 3, 5, 6, 7]))
    assert made.arrays["crd0"].tolist() == [0, 1, 1, 3, 3] and made.arrays["crd1"].tolist() == [1, 0, 1, 1, 2]
    assert made.values.tolist() == [3, 4, 5, 6, 7]


def test_what_must_be_sorted_is_not_streamed():
    assert streamed(gs.formats.PackedCSR(), gs.CSR()) is None  # in no order
    layout = Layout.of(target_of(gs.CSR(), (3, 4)))
    with interpreted():
        assert streaming.stream(source_of(structure(gs.CSR())), layout, None) is None  # other dimensions


def test_more_passes_to_count_than_a_sort_costs(monkeypatch):
    assert streamed(gs.CSR(), gs.DCSR()) is not None
    monkeypatch.setattr(streaming, "_PASSES", 1)
    assert streamed(gs.CSR(), gs.DCSR()) is None


@pytest.mark.parametrize("target", [gs.CSR(), gs.CSC(), gs.ELL(), gs.BSR((2, 2)), gs.Dense()], ids=str)
def test_no_entry_at_all(target):
    empty = Structure.from_keys(gs.CSR(), torch.zeros(0, dtype=torch.int64), (4, 3))[0]
    with interpreted():
        made = streaming.stream(source_of(empty), Layout.of(target_of(target, (4, 3))), None)
    assert made.entries == 0
