from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer as gs
from gossamer.native.build import compiler
from gossamer.patterns import NM, TransposableNM, Unstructured, as_pattern, transposable_nm
from gossamer.patterns.transposable_nm import masks_of
from tests.native import emulator


def test_by_hand() -> None:
    scores = torch.tensor([[9.0, 8.0, 7.0, 1.0], [9.0, 8.0, 7.0, 1.0], [9.0, 8.0, 7.0, 1.0], [9.0, 8.0, 7.0, 1.0]])
    mask = TransposableNM(2, 4).select(scores)  # every column keeps two, however good it is
    assert mask.sum(0).tolist() == mask.sum(1).tolist() == [2, 2, 2, 2]
    diagonal = torch.eye(4) * 5 + torch.eye(4).roll(1, 0)
    assert torch.equal(TransposableNM(2, 4).select(diagonal), diagonal > 0)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 13), columns=st.integers(1, 13), n=st.integers(1, 4), seed=st.integers(0, 99))
def test_both_ways_and_best(rows: int, columns: int, n: int, seed: int) -> None:
    scores = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    mask = TransposableNM(n, 4).select(scores)
    for each in (mask, mask.t()):
        assert all(int(part.sum(1).max()) <= n for part in each.split(4, 1))
    full = mask[: rows // 4 * 4, : columns // 4 * 4]
    for at in range(0, full.shape[0], 4):
        for to in range(0, full.shape[1], 4):
            block, kept = scores[at : at + 4, to : to + 4], full[at : at + 4, to : to + 4]
            assert kept.sum(0).tolist() == kept.sum(1).tolist() == [n] * 4
            sums = (masks_of(n).view(-1, 4, 4) * block).sum((1, 2))
            assert float((block * kept).sum()) == pytest.approx(float(sums.max()), abs=1e-5)


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("rows, columns", [(4, 4), (8, 4), (64, 132), (128, 20)])
def test_the_kernel(monkeypatch: pytest.MonkeyPatch, rows: int, columns: int) -> None:
    monkeypatch.setattr(transposable_nm, "function", emulator.function)
    scores = torch.randn(rows, columns)
    scores[0, 1], scores[1, 2], scores[2] = torch.inf, -torch.inf, 0.5  # also ties
    assert torch.equal(transposable_nm._launch(scores), TransposableNM(2, 4)._search(scores))
    scores = torch.randint(3, (rows, columns)).float()
    assert torch.equal(transposable_nm._launch(scores), TransposableNM(2, 4)._search(scores))


def test_words_and_sizes() -> None:
    pattern = TransposableNM(2, 4)
    assert as_pattern("2:4 transposable") == as_pattern(str(pattern)) == pattern
    assert pattern.sparsity_of((8, 12)) == 0.5 and pattern.sparsity_of((7, 12)) is None
    assert [str(pattern.towards(share)) for share in (0.0, 0.6, 1.0)] == ["0%", "3:4 transposable", "2:4 transposable"]
    assert pattern.towards(0.0) == Unstructured(0.0)
    assert pattern.portion((8, 8), 0, 0, 4) == pattern and pattern.portion((8, 8), 1, 0, 6) is None
    assert pattern.select(torch.zeros(0, 8)).shape == (0, 8)
    assert isinstance(gs.patterns.recognise(pattern.select(torch.randn(64, 64))), NM)
    assert pattern.select(torch.randn(4, 4, 3, 3)).view(4, 36).sum(1).unique().tolist() == [18]
    with pytest.raises(ValueError, match="n of every 4"):
        TransposableNM(2, 8)


def test_infinite_scores_stay() -> None:
    scores = torch.zeros(4, 4)
    scores[1, 2], scores[0, 0] = torch.inf, -torch.inf
    mask = TransposableNM(2, 4).select(scores)
    assert mask[1, 2] and not mask[0, 0]
