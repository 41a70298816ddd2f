"""How fractions are written as percentages, and read."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.patterns._text import INT, NUMBER, PERCENT, from_percent, percent


@pytest.mark.parametrize(
    ("value", "text"), [(0.9, "90%"), (0.0, "0%"), (1.0, "100%"), (0.875, "87.5%"), (0.1, "10%"), (1e-07, "0.00001%")]
)
def test_by_hand(value, text):
    assert percent(value) == text and from_percent(text[:-1]) == value


@given(st.floats(0, 1))
def test_what_is_written_is_read(value):
    text = percent(value)
    assert from_percent(re.fullmatch(PERCENT, text).group(1)) == value


def test_forms_of_numbers():
    assert all(re.fullmatch(PERCENT, text) for text in ("90%", "90 %", "87.5%", ".5%", "90.%"))
    assert not any(re.fullmatch(PERCENT, text) for text in ("%", "-5%", "90", "90  %", "1e2%", "."))
    assert all(re.fullmatch(NUMBER, text) for text in ("1", "-0.5", "+.5", "1e-3", "2.", "-1.5e+10"))
    assert not any(re.fullmatch(NUMBER, text) for text in ("", "e5", "1e", "--1", "."))
    assert re.fullmatch(INT, "12") and not re.fullmatch(INT, "-1") and not re.fullmatch(INT, "1.0")
