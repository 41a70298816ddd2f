from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.patterns import NM, VNM, Blocks, FanIn, GroupedNM, KeepAll, Pattern, Threshold, Unstructured, as_pattern


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
