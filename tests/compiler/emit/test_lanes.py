"""Lanes: types of vectors, and how many bytes a value has in C."""

import ctypes

import pytest

from gossamer.compiler.emit.lanes import BYTES, Lanes
from gossamer.compiler.loops.names import ACC


@pytest.mark.parametrize("ctype", list(BYTES))
def test_bytes_are_those_of_c(ctype):
    assert BYTES[ctype] == ctypes.sizeof(getattr(ctypes, f"c_{ctype}"))


def test_loops_share_nothing():
    first, second = Lanes("j", 16, 2), Lanes("j", 8, 1)
    first.moves["n"] = 1
    first.held.add("row0")
    assert (first.type, second.type) == ("v16", "v8")
    assert not second.moves and second.held == {ACC} and not second.open
