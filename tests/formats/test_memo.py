"""Memo: bounded by bytes, weak in the owners of its values."""

import gc

import torch

import gossamer as gs
from gossamer.formats.memo import ENTRY, Memo, nbytes_of


class Owner:
    pass


def test_a_value_is_made_once():
    memo, made = Memo(1 << 20), []
    for _ in range(3):
        assert memo.cached("key", lambda: made.append(1) or "value") == "value"
    assert made == [1] and memo.get("key") == "value" and memo.get("other") is None


def test_none_is_a_value_too():
    memo, made = Memo(1 << 20), []
    for _ in range(3):
        assert memo.cached("key", lambda: made.append(1)) is None
    assert made == [1]


def test_what_was_not_used_for_longest_is_dropped_first():
    memo = Memo(4 * (ENTRY + 1000))
    for name in "abcd":
        memo.keep(name, torch.zeros(250))
    memo.get("a")
    memo.keep("e", torch.zeros(250))
    assert memo.get("a") is not None and memo.get("e") is not None and memo.get("b") is None
    assert memo.nbytes == len(memo) * (ENTRY + 1000) <= memo.limit


def test_the_newest_value_is_kept_whatever_its_size():
    memo = Memo(10_000)
    memo.keep("small", 1)
    memo.keep("large", torch.zeros(100_000))
    assert len(memo) == 1 and memo.get("large") is not None
    memo.keep("small", 1)
    assert memo.get("large") is None and memo.nbytes == ENTRY


def test_a_value_goes_with_any_of_its_owners():
    memo, first, second = Memo(1 << 20), Owner(), Owner()
    memo.keep("both", torch.zeros(10), (first, second))
    memo.keep("one", torch.zeros(10), (first,))
    del second
    gc.collect()
    assert memo.get("both") is None and memo.get("one") is not None
    memo.drop("one")
    assert memo.nbytes == 0 and len(memo) == 0


def test_a_key_that_is_set_again_counts_once():
    memo = Memo(1 << 20)
    for _ in range(5):
        memo.keep("key", torch.zeros(25))
    assert memo.nbytes == ENTRY + 100
    memo.clear()
    assert memo.nbytes == 0


def test_bytes_of_a_structure_are_those_of_its_arrays():
    s = gs.from_dense(torch.eye(4), gs.CSR()).structure
    assert nbytes_of(s) == nbytes_of(s.arrays) == (5 + 4) * 4


def test_what_a_structure_keeps_is_bounded(monkeypatch):
    from gossamer.formats import structure

    monkeypatch.setattr(structure, "_LEAST_KEPT", 100_000)
    s = gs.from_dense(torch.eye(4), gs.CSR()).structure
    for n in range(1000):
        s.cached(n, lambda: torch.zeros(2500))
    assert s._memo.nbytes <= 100_000 + 8 * s.nbytes()
