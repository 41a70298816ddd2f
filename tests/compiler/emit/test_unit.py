"""The C file of a kernel: what it has, and a nest that is built and run."""

import pytest
import torch

from gossamer.compiler.emit.prelude import JOINED
from gossamer.compiler.emit.unit import function, source
from gossamer.compiler.loops.nest import ZERO, Bin, For, Load, Nest, Num, Store, Var
from gossamer.compiler.run import runtime
from tests.compiler.emit.built import ran

TURN = [Store("out", Var("i"), Bin("*", Num(2.0), Load("A.val", Var("i"))))]


def twice(value="float", **more):
    loop = For("i", ZERO, Var("i.size"), TURN, "units")
    return Nest(
        "", (("A.val", value), ("out", value)), ("i.size",), [loop], value, Var("i.size"), indices=("i",), **more
    )


def parts(value="float"):
    """A nest whose chunks each add up a result of their own: of even and of odd places."""
    body = [Store("out", Bin("%", Var("i"), Num(2)), Load("A.val", Var("i")), "+=")]
    loop = For("i", ZERO, Var("i.size"), body, "parts")
    arrays = (("A.val", value), ("out", value))
    return Nest("", arrays, ("i.size", "out.total"), [loop], value, Var("i.size"), indices=("i",), parts=True)


def test_the_functions_of_a_nest():
    text = function(twice(), "fill")
    assert "static void fill(" in text and "long run_fill(" in text and "return i_size;" in text
    assert "const float *restrict A_val = a[0];" in text and "  float *restrict out = a[1];" in text
    assert "out += chunk" not in text and "out += chunk * out_total;" in function(parts(), "fill")


@pytest.mark.skipif(not runtime.available(), reason="no C compiler")
@pytest.mark.parametrize("value, dtype", [("float", torch.float32), ("double", torch.float64), ("int", torch.int32)])
@pytest.mark.parametrize("chunks", [1, 2, 7, 1000])
def test_small_results_of_chunks_are_added_up(chunks, value, dtype):
    a, out = torch.arange(5000).to(dtype), torch.zeros(3, dtype=dtype)
    ran(parts(value), {"A.val": a, "out": out}, {"i.size": 5000, "out.total": 2}, chunks)
    assert out.tolist() == [a[::2].double().sum(), a[1::2].double().sum(), 0]


@pytest.mark.skipif(not runtime.available(), reason="no C compiler")
def test_large_results_of_chunks_are_left_to_the_caller():
    a, chunks, total = torch.ones(5000), 3, JOINED // 8
    out = torch.zeros(chunks, total)
    ran(parts(), {"A.val": a, "out": out}, {"i.size": 5000, "out.total": total}, chunks)
    assert out.sum(0)[:3].tolist() == [2500, 2500, 0] and bool((out.sum(1) > 1000).all())


def test_a_nest_without_units_is_one():
    one = Nest("", (("out", "float"),), (), [Store("out", ZERO, Num(1.0))], "float")
    assert "return 1;" in function(one, "fill")


@pytest.mark.parametrize(
    "value, long, sums",
    [("float", True, "double"), ("float", False, "float"), ("int", True, "long"), ("long", True, "long")],
)
def test_long_sums_have_a_wider_type(value, long, sums):
    text = source({"fill": twice(value, long=long)})
    assert f"typedef {value} real;" in text and f"typedef {sums} sum_t;" in text
    assert ("sqrt" in text) == (value == "float")


def test_weights_have_the_type_of_their_array():
    nest = twice()
    weighed = Nest("", (("A.pos1", "long"), *nest.arrays), nest.sizes, nest.body, "float", nest.units, "A.pos1")
    assert "#define WEIGHT long" in source({"fill": weighed}) and "= j->a[0];" in function(weighed, "fill")


@pytest.mark.skipif(not runtime.available(), reason="no C compiler")
@pytest.mark.parametrize("n", [0, 1, 5, 40])
@pytest.mark.parametrize("chunks", [1, 3, 64])
def test_chunks_of_units_do_everything_once(n, chunks):
    a, out = torch.arange(float(n)), torch.full((n + 1,), -1.0)
    ran(twice(), {"A.val": a, "out": out}, {"i.size": n}, chunks)
    assert out.tolist() == [*(2 * a).tolist(), -1]
