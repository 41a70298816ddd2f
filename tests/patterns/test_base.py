"""What holds of every pattern."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.patterns import (
    NM,
    VNM,
    Blocks,
    FanIn,
    GroupedNM,
    KeepAll,
    Pattern,
    SharedNM,
    Threshold,
    Unstructured,
    as_pattern,
)

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
    SharedNM(2, 4, 3, 5),
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


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_portions_add_up(data: st.DataObject) -> None:
    """Side by side, the masks of all portions keep as many values as the pattern keeps of the matrix."""
    pattern = data.draw(st.sampled_from([p for p in ALL if not p.joint]))
    shape, dim = (data.draw(st.integers(1, 30)), data.draw(st.integers(1, 30))), data.draw(st.integers(0, 1))
    cuts = sorted({0, shape[dim], *data.draw(st.lists(st.integers(0, shape[dim]), max_size=3))})
    portions = [pattern.portion(shape, dim, a, b) for a, b in pairwise(cuts)]
    if any(portion is None for portion in portions):
        return
    scores = torch.rand(shape)
    sizes = [b - a for a, b in pairwise(cuts)]
    parts = [portion.select(part) for portion, part in zip(portions, scores.split(sizes, dim), strict=True)]
    mask, full = torch.cat(parts, dim), pattern.select(scores)
    assert mask.sum() == full.sum() or isinstance(pattern, Blocks)  # of which blocks are counted
    if pattern.period is not None or isinstance(pattern, Threshold):
        assert torch.equal(mask, full)


@pytest.mark.parametrize("pattern", [p for p in ALL if p.period is not None], ids=str)
def test_periodic_patterns_split_between_groups_only(pattern: Pattern) -> None:
    m = pattern.period
    assert m is not None
    assert pattern.portion((12, 4 * m), 1, m, 3 * m) == pattern
    assert pattern.portion((12, 4 * m), 1, 0, m + 1) is None and pattern.portion((12, 4 * m), 1, 1, m) is None


@pytest.mark.parametrize("pattern", ALL, ids=str)
def test_stages_lead_to_the_pattern(pattern: Pattern) -> None:
    assert pattern.towards(1.0) == pattern
    stages = [pattern.towards(share) for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    scores = torch.rand(12, 60)
    kept = [int(stage.select(scores).sum()) for stage in stages]
    assert kept == sorted(kept, reverse=True)
    for stage in stages:
        assert as_pattern(str(stage)) == stage
    if pattern.sparsity_of((12, 60)) and not isinstance(pattern, GroupedNM):
        assert kept[0] == 720


@pytest.mark.parametrize("pattern", ALL, ids=str)
def test_a_choice_describes_the_masks(pattern: Pattern) -> None:
    choice = pattern.choice(12)
    if choice is None:
        return
    groups = pattern.select(torch.rand(12, 4 * choice.m)).view(12 // choice.rows, choice.rows, 4, choice.m)
    assert (groups.sum(3) == choice.n).all()
    assert choice.shared is None or (groups.any(1).sum(2) <= choice.shared).all()


def test_a_pattern_of_ones_own_has_safe_answers() -> None:
    @dataclass(frozen=True)
    class First(Pattern):
        def pick(self, scores: torch.Tensor) -> torch.Tensor:
            mask = torch.zeros(scores.shape, dtype=torch.bool)
            mask[0] = True
            return mask

    own, scores = First(), torch.rand(3, 4)
    assert own.portion((3, 4), 1, 0, 4) is None and own.choice(3) is None and own.period is None
    assert own.towards(0.5) is own and own.unit == (1, 1) and own.formats == () and not own.joint
    assert torch.equal(own.select_by_row(scores), own.select(scores)) and First.recognise(scores > 0) is None


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.floats(0, 1))
def test_by_row_is_even_and_exact(rows: int, columns: int, fraction: float) -> None:
    scores = torch.rand(rows, columns) * torch.logspace(-3, 3, rows)[:, None]
    mask = Unstructured(fraction).select_by_row(scores)
    gone = columns - mask.sum(1)
    assert int(gone.max() - gone.min()) <= 1
    assert mask.sum() == Unstructured(fraction).select(scores).sum()
    for row, kept in zip(scores, mask, strict=True):  # in each row the highest stay
        assert not kept.any() or kept.all() or row[kept].min() >= row[~kept].max()
