from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gossamer as gs
from gossamer.patterns import (
    NM,
    VNM,
    Blocks,
    FanIn,
    GroupedNM,
    KeepAll,
    Pattern,
    Threshold,
    Unstructured,
    as_pattern,
    recognise,
)
from gossamer.patterns.known import PATTERNS


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("90%", Unstructured(0.9)),
        (" 99.5 % ", Unstructured(0.995)),
        ("90% per row", Unstructured(0.9, per="row")),
        ("90% per tensor", Unstructured(0.9)),
        ("90%  Per Model", Unstructured(0.9, per="model")),
        ("2:4", NM(2, 4)),
        ("1:8:g16", GroupedNM(1, 8, 16)),
        ("1:8:G16", GroupedNM(1, 8, 16)),
        ("64:2:8", VNM(64, 2, 8)),
        ("all:2:8", VNM("all", 2, 8)),
        ("fan-in 90%", FanIn(0.9)),
        ("fan-in 32", FanIn(k=32)),
        ("Fan-in k = 32", FanIn(k=32)),
        ("block 4x4 80%", Blocks(0.8, (4, 4))),
        ("block 1x16 80%", Blocks(0.8, (1, 16))),
        ("|x| > 0.01", Threshold(0.01)),
        ("|x|>1e-3", Threshold(0.001)),
        ("> -0.5", Threshold(-0.5)),
        ("keep all", KeepAll()),
        ("keep-all", KeepAll()),
    ],
)
def test_strings(text: str, pattern: Pattern) -> None:
    assert as_pattern(text) == pattern
    assert as_pattern(pattern) is pattern


counts = st.integers(1, 300)
fractions = st.floats(0, 1)
patterns = st.one_of(
    st.just(KeepAll()),
    st.builds(Unstructured, fractions, st.sampled_from(["tensor", "row", "model"])),
    st.builds(Threshold, st.floats(allow_nan=False, allow_infinity=False)),
    st.builds(Blocks, fractions, st.tuples(counts, counts)),
    st.builds(lambda n, m: NM(min(n, m), max(n, m)), counts, counts),
    st.builds(lambda m, g: GroupedNM(1, m, g), counts, counts),
    st.builds(FanIn, fractions),
    st.builds(lambda k: FanIn(k=k), counts),
    st.builds(lambda v, m: VNM(v, 2, m + 3), counts | st.just("all"), counts),
)


@given(patterns)
def test_round_trip(pattern: Pattern) -> None:
    assert as_pattern(str(pattern)) == pattern


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("2-4", "2:4"),
        ("fanin 85%", "fan-in 90%"),
        ("block 4,4 80%", "block 4x4 80%"),
        ("1:8:gg", "1:8:g16"),
        ("keepall", "keep all"),
    ],
)
def test_unknown_strings_name_what_is_allowed(text: str, near: str) -> None:
    with pytest.raises(ValueError, match="Allowed forms") as caught:
        as_pattern(text)
    message = str(caught.value)
    assert repr(text) in message and f'something like "{near}"' in message
    assert all(
        form in message for form in ("90%", "2:4", "1:8:g16", "64:2:8", "all:2:8", "fan-in 90%", "block 4x4 80%")
    )


def test_bad_numbers_in_strings() -> None:
    for text, what in (
        ("120%", "from 0"),
        ("5:4", "n <= m"),
        ("64:3:8", "n = 2"),
        ("0:4", "at least 1"),
        ("", "Unknown"),
    ):
        with pytest.raises(ValueError, match=what):
            as_pattern(text)
    with pytest.raises(TypeError, match="float"):
        as_pattern(0.9)  # type: ignore[arg-type]


# -- recognising masks

SAME = [
    "2:4",
    "1:4",
    "4:8",
    "1:8",
    "2:10",
    "64:2:8",
    "32:2:16",
    "all:2:8",
    "1:4:g8",
    "2:4:g4",
    "1:8:g16",
    "2:14",
    "4:2:12",
]


@pytest.mark.parametrize("pattern", SAME)
def test_n_of_m_in_all_its_kinds(pattern: str) -> None:
    assert str(recognise(as_pattern(pattern).select(torch.rand(256, 336)))) == pattern


@pytest.mark.parametrize("block", [(2, 2), (4, 4), (8, 8), (16, 16), (1, 4), (1, 32), (4, 1)], ids=str)
@pytest.mark.parametrize("shape", [(128, 128), (67, 90)], ids=str)
def test_blocks(block: tuple[int, int], shape: tuple[int, int]) -> None:
    mask = Blocks(0.75, block).select(torch.rand(shape))
    found = recognise(mask)
    assert isinstance(found, Blocks) and found.block == block
    assert torch.equal(found.select(mask.float()), mask)


def test_fan_in_with_and_without_empty_rows() -> None:
    mask = FanIn(k=7).select(torch.rand(64, 100))
    assert recognise(mask) == FanIn(k=7)
    mask[[3, 9]] = False
    assert recognise(mask) == FanIn(k=7)
    mask[5] = True
    assert recognise(mask) is None


def test_nothing_everything_and_no_order() -> None:
    assert recognise(Unstructured(0.5).select(torch.rand(64, 64))) is None
    assert recognise(torch.ones(4, 4, dtype=torch.bool)) == KeepAll()
    assert recognise(torch.zeros(4, 4, dtype=torch.bool)) == Unstructured(1.0)
    assert recognise(torch.zeros(0, 4, dtype=torch.bool)) == KeepAll()
    assert recognise(torch.rand(200) < 0.5) is None  # a vector


def test_one_tolerance() -> None:
    """1.1 times the positions that the mask keeps: zeros that training left are forgiven up to there."""
    mask = NM(2, 4).select(torch.rand(64, 64))  # 2048 are kept
    rows, columns = mask.nonzero().unbind(1)
    few, many = mask.clone(), mask.clone()
    few[rows[::12], columns[::12]] = False  # 171: 2048 / 1877 = 1.09
    many[rows[::10], columns[::10]] = False  # 205: 2048 / 1843 = 1.11
    assert recognise(few) == NM(2, 4) and recognise(many) != NM(2, 4)


def test_convolutions_columns_and_rows_that_are_no_multiple() -> None:
    assert recognise(NM(2, 4).select(torch.rand(32, 30))) == NM(2, 4)
    assert recognise(NM(1, 2).select(torch.rand(32, 32))) == NM(2, 4)  # which it is as well
    assert recognise(NM(1, 3).select(torch.rand(16, 4, 3, 3))) == NM(1, 3)
    assert recognise(GroupedNM(1, 20, 8).select(torch.rand(500, 508))) == GroupedNM(1, 20, 8)


def test_every_pattern_names_formats_that_exist_and_hold_it() -> None:
    for kind in PATTERNS:
        for form in kind.forms:
            pattern = as_pattern(form.example)
            mask = pattern.select(torch.rand(64, 64))
            for name in pattern.formats:
                stored = gs.from_dense(torch.where(mask, 1.0, 0.0), gs.formats.as_format(name))
                assert torch.equal(stored.mask() & mask, mask)
