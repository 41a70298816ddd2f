"""What holds of every pattern."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.patterns import NM, VNM, Blocks, FanIn, GroupedNM, KeepAll, Pattern, Threshold, Unstructured, as_pattern

ALL: list[Pattern] = [
    KeepAll(),
    Threshold(0.3),
    Unstructured(0.5),
    Unstructured(0.3, per="row"),
    Unstructured(0.3, per="model"),
    Blocks(0.5, (2, 3)),
    NM(2, 4),
    GroupedNM(1, 3, 2),
    FanIn(0.5),
    VNM(2, 2, 5),
    VNM("all", 2, 6),
]
SHAPES = [(), (1,), (7,), (0,), (5, 0), (0, 5), (1, 1), (4, 8), (3, 7), (13, 11), (6, 2, 3, 3)]


@pytest.mark.parametrize("pattern", ALL, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_any_shape_and_dtype(pattern: Pattern, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    scores = torch.rand(shape, dtype=torch.float32).to(dtype)
    before = scores.clone()
    mask = pattern.select(scores)
    assert mask.shape == scores.shape and mask.dtype == torch.bool
    assert torch.equal(scores, before)
    expected = pattern.sparsity_of(shape)
    assert expected is None or 0 <= expected <= 1


@pytest.mark.parametrize("pattern", ALL, ids=str)
def test_non_contiguous_is_the_same(pattern: Pattern) -> None:
    scores = torch.rand(9, 14).t()
    assert torch.equal(pattern.select(scores), pattern.select(scores.contiguous()))


@pytest.mark.parametrize("pattern", ALL, ids=str)
def test_threads_do_not_matter(pattern: Pattern) -> None:
    scores = torch.randint(0, 50, (300, 130)).float()  # many ties
    threads = torch.get_num_threads()
    try:
        masks = []
        for count in (1, 2):
            torch.set_num_threads(count)
            masks.append(pattern.select(scores))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*masks)


@pytest.mark.parametrize("pattern", ALL, ids=str)
def test_infinite_scores_rank_first_and_last(pattern: Pattern) -> None:
    scores = torch.rand(12, 12)
    scores[0, 0], scores[5, 7] = torch.inf, -torch.inf
    mask = pattern.select(scores)
    assert mask[0, 0]
    assert mask.shape == scores.shape


@pytest.mark.parametrize("pattern", [p for p in ALL if p != KeepAll()], ids=str)
def test_nan_is_an_error(pattern: Pattern) -> None:
    scores = torch.rand(6, 6)
    scores[1, 1] = torch.nan
    with pytest.raises(ValueError, match="1 of 36 scores"):
        pattern.select(scores)


@pytest.mark.parametrize("pattern", ALL, ids=str)
@pytest.mark.parametrize(
    "scores", [torch.ones(2, dtype=torch.int64), torch.ones(2).bool(), torch.ones(2) + 0j, [1.0]], ids=str
)
def test_only_real_floats(pattern: Pattern, scores: object) -> None:
    with pytest.raises(TypeError, match="scores"):
        pattern.select(scores)  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ALL, ids=str)
def test_frozen_copied_and_hashed_by_value(pattern: Pattern) -> None:
    again = pickle.loads(pickle.dumps(copy.deepcopy(pattern)))
    assert again == pattern and hash(again) == hash(pattern)
    assert as_pattern(str(pattern)) == pattern
    with pytest.raises(AttributeError):
        pattern.anything = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("pattern", ALL, ids=str)
def test_no_gradient_is_recorded(pattern: Pattern) -> None:
    assert not pattern.select(torch.rand(6, 6, requires_grad=True)).requires_grad


def test_costs_are_the_tables() -> None:
    assert KeepAll().cost == Threshold(0.1).cost == ("streaming", 1, "O(1)")
    assert Unstructured(0.9).cost == Blocks(0.9).cost == VNM("all", 2, 8).cost == ("materializing", 2, "O(nnz)")
    assert NM(2, 4).cost == GroupedNM(1, 4, 2).cost == FanIn(0.9).cost == VNM(4, 2, 8).cost == ("blocking", 2, "O(b)")
    assert Unstructured(0.9, per="row").cost == ("blocking", 2, "O(b)")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sparsity_of_is_what_happens(data: st.DataObject) -> None:
    """Where a shape determines the sparsity, select has it exactly; two patterns only promise it for whole blocks."""
    rows, columns = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    fraction = data.draw(st.floats(0, 1))
    exact = [Unstructured(fraction), Unstructured(fraction, "row"), FanIn(fraction), NM(2, 3), VNM(3, 2, 5), KeepAll()]
    shapes: list[tuple[Pattern, tuple[int, int]]] = [(p, (rows, columns)) for p in exact]
    shapes += [(Blocks(fraction, (2, 3)), (2 * rows, 3 * columns)), (GroupedNM(1, 3, 2), (rows, 3 * columns))]
    for pattern, shape in shapes:
        kept = pattern.select(torch.rand(shape)).sum().item()
        assert pattern.sparsity_of(shape) == pytest.approx(1 - kept / (shape[0] * shape[1]))
