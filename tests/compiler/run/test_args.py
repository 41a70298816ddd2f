"""Operands without values."""

from gossamer.compiler.run.args import Arg, strides_in


def test_strides():
    assert strides_in((2, 3, 4), (0, 1, 2)) == (12, 4, 1)
    assert strides_in((2, 3, 4), (2, 0, 1)) == (3, 1, 6)
    assert strides_in((2, 0), (0, 1)) == (1, 1)
    assert Arg(("i", "j"), None, (2, 3), (1, 2)).strides == (1, 2)
    assert Arg(("i", "j"), None, (2, 3)).strides == (3, 1)
