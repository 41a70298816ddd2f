"""What C and CUDA write alike."""

import pytest

from gossamer.compiler.emit.text import Text
from gossamer.compiler.loops.nest import Bin, Call, Nest, Num, Set, Var


def text(value="float"):
    return Text(Nest("", (), (), [], value, indices=("row",)))


def test_by_hand():
    t = text()
    assert t.binary(Bin("+", Num(1), Num(2)), "a", "b") == "(a + b)"
    assert t.binary(Bin("min", Num(1), Num(2)), "a", "b") == "(a < b ? a : b)"
    assert t.binary(Bin("/", Num(1.0), Var("row.size")), "a", "i_size") == "(a / (real)i_size)"
    assert t.extreme("m", "max=", "x") == "{ const real x_ = x; if (x_ > m || x_ != x_) m = x_; }"
    assert "<" in t.extreme("m", "min=", "x")


@pytest.mark.parametrize(
    ("value", "most"), [("float", "__builtin_inf()"), ("int", "2147483647"), ("long", "9223372036854775807")]
)
def test_numbers(value, most):
    t = text(value)
    assert t.number(Num(float("inf"))) == f"({most})" and t.number(Num(float("-inf"))) == f"(-{most})"
    assert t.number(Num(3)) == "3" and t.number(Num(0.5)) == "((real)0.5)"


@pytest.mark.parametrize(("value", "suffix"), [("float", "f"), ("bfloat16", "f"), ("double", "")])
def test_functions_of_single_precision_have_a_suffix(value, suffix):
    assert f"exp{suffix}(" in text(value).call(Call("exp", (Var("x"),)), ["x"])


def test_a_block_is_indented_and_a_language_writes_its_statements():
    class Lines(Text):
        def statement(self, s):
            self.put(s.name)

    lines = Lines(Nest("", (), (), [], "float"))
    lines.block([Set("n", Num(1)), Set("m", Num(1))])
    assert lines.lines == ["    n", "    m"] and lines.depth == 1
    with pytest.raises(NotImplementedError):
        text().block([Set("n", Num(1))])
