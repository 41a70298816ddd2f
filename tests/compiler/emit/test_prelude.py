"""What kernels begin with: searches and sums of lanes, built and called."""

import ctypes
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.compiler.emit import prelude, unit
from gossamer.compiler.run import runtime

pytestmark = pytest.mark.skipif(not runtime.available(), reason="no C compiler")
SEARCH = prelude.FIND + "long search(const int *crd, long begin, long end, long want) {\n"
SEARCH += "  FIND(q, crd, begin, end, want)\n  return q;\n}\n"
CUT = "#define WEIGHT int\n" + prelude.SHARE
CUT += "long first(const int *w, long units, long chunks, long c) {\n"
CUT += "  struct job j = {0, 0, 0, 0, units, chunks, 0, 0};\n  return cut(&j, w, c);\n}\n"


def called(source, name, *args):
    found = getattr(runtime.library(source), name)
    found.restype, found.argtypes = ctypes.c_long, [ctypes.c_void_p, *[ctypes.c_long] * 3]
    return found(*args)


@given(st.lists(st.integers(0, 30), unique=True).map(sorted), st.integers(-1, 31), st.data())
def test_search(crd, want, data):
    begin = data.draw(st.integers(0, len(crd)))
    end = data.draw(st.integers(begin, len(crd)))
    at = called(SEARCH, "search", (ctypes.c_int * max(len(crd), 1))(*crd), begin, end, want)
    assert at == (crd.index(want) if want in crd[begin:end] else end)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(1, 8))
def test_chunks_take_every_unit_once_and_about_as_much_work(work, chunks):
    before = [sum(work[:n]) for n in range(len(work) + 1)]
    array = (ctypes.c_int * len(before))(*before)
    for weights in (array, None):
        cuts = [called(CUT, "first", weights, len(work), chunks, c) for c in range(chunks + 1)]
        assert cuts[0] == 0 and cuts[-1] == len(work) and cuts == sorted(cuts)
        if weights is not None:  # a chunk is longer than its share by one unit at most
            cost = [before[b] + b - before[a] - a for a, b in itertools.pairwise(cuts)]
            assert max(cost) <= (before[-1] + len(work)) / chunks + max(work) + 1


@pytest.mark.parametrize(
    "value, ctype", [("float", ctypes.c_float), ("double", ctypes.c_double), ("int", ctypes.c_int)]
)
def test_sums_of_lanes(value, ctype):
    size = ctypes.sizeof(ctype)
    lanes = 64 // size
    types = "".join(
        f"typedef real v{n} __attribute__((vector_size({n * size}), aligned({size})));\n"
        for n in sorted({4, lanes // 4, lanes // 2, lanes})
    )
    source = f"typedef {value} real;\n{types}{prelude.SHUFFLES}{unit._horizontal(value)}"
    source += f"void all(const v{lanes} *v, real *one, v4 *four) {{ *one = v{lanes}_sum(v[0]);"
    source += f" *four = v{lanes}_sums(v[0], v[1], v[2], v[3]); }}\n"
    given, one, four = (ctype * (4 * lanes))(*range(4 * lanes)), (ctype * 1)(), (ctype * 4)()
    runtime.library(source).all(given, one, four)
    want = [sum(range(n * lanes, (n + 1) * lanes)) for n in range(4)]
    assert one[0] == want[0] and list(four) == want
