"""From one stack of levels to another: streamed or sorted, or left to torch."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.convert import restack as module
from gossamer.compiler.convert.passes import Passes
from gossamer.compiler.convert.restack import enough, plain, restack, target_of
from gossamer.formats import PackedCSR, Structure
from gossamer.native import BuildError
from tests.compiler.convert.interpreted import interpreted

X = torch.tensor([[0.0, 3.0], [4.0, 5.0]])


def structure(format, x=X):
    return Structure.from_keys(format, torch.nonzero(x.view(-1)).squeeze(1), x.shape)[0]


def test_by_hand():
    with interpreted():
        made = restack(structure(gs.CSR()), target_of(gs.CSC(), (2, 2)))
    assert made.arrays["pos1"].tolist() == [0, 1, 3] and made.arrays["crd1"].tolist() == [1, 0, 1]
    assert made.where.tolist() == [1, 0, 2] and (made.entries, made.places) == (3, 3)


def test_sorted_entries_by_hand():
    numbers = torch.tensor([3, 1, 3, 2])
    with interpreted():
        made = restack(numbers, target_of(gs.CSR(), (2, 2)), numbers=True)
        dense = restack(X, target_of(gs.CSC(), (2, 2)))
    assert made.arrays["pos1"].tolist() == [0, 1, 3] and made.arrays["crd1"].tolist() == [1, 0, 1]
    assert made.where.tolist() == [1, 3, 0, 2] and made.group.tolist() == [0, 1, 2, 2] and made.entries == 3
    assert dense.where.tolist() == [2, 1, 3]  # places of a dense tensor, column by column


def test_values_that_a_stream_brings_along():
    with interpreted():
        made = restack(structure(gs.CSR()), target_of(gs.CSC(), (2, 2)), values=torch.tensor([3.0, 4.0, 5.0]))
        unordered = restack(structure(PackedCSR()), target_of(gs.CSR(), (2, 2)), values=torch.zeros(16))
    assert made.values.tolist() == [4, 3, 5] and unordered.values is None  # those are moved afterwards


def test_targets():
    assert target_of(gs.CSR(), (2, 3)).sizes == (2, 3)
    assert target_of(gs.formats.PackedVNM("all", 2, 4), (16, 16)) is None  # its level has no ``store``
    with interpreted():
        assert restack(structure(gs.CSR()), None) is None
        assert restack(structure(gs.CSR(), torch.zeros(0, 3)), target_of(gs.CSC(), (0, 3))) is None
        assert restack(torch.tensor([1]), target_of(gs.COO(), (5,) * 27), numbers=True) is None  # 81 bits


def test_where_it_cannot_be_built_torch_does_it(monkeypatch):
    def fails(*_):
        raise BuildError("no")

    monkeypatch.setattr(module, "available", lambda: True)
    monkeypatch.setattr(Passes, "run", fails)
    assert restack(structure(gs.CSR()), target_of(gs.CSC(), (2, 2))) is None
    monkeypatch.setattr(module, "available", lambda: False)
    monkeypatch.setattr(Passes, "run", None)
    assert restack(structure(gs.CSR()), target_of(gs.CSC(), (2, 2))) is None


def test_what_is_plain_and_enough():
    assert enough(module.LEAST) and not enough(module.LEAST - 1)
    assert plain(X, torch.nn.Parameter(X)) and not plain(X, X.to("meta"))
    assert not plain(gs.from_dense(X, gs.CSR()))


@pytest.mark.parametrize("wide", [False, True])
def test_places_that_need_wide_integers(wide, monkeypatch):
    monkeypatch.setattr(module, "fits", lambda n, target: not wide)
    with interpreted():
        made = restack(torch.tensor([3, 1]), target_of(gs.CSR(), (2, 2)), numbers=True)
    assert made.arrays["crd1"].dtype == (torch.int64 if wide else torch.int32)
