"""The C of nests that convert."""

from gossamer.compiler.emit.routines import function, source
from gossamer.compiler.loops.nest import ZERO, Blank, For, If, Let, Load, Num, Prefetch, Scatter, Set, Stop, Store, Var
from gossamer.compiler.loops.uses import routine


def test_by_hand():
    turn = [If(Load("A.real", Var("k")), [Store("out", Var("k"), Load("A.real", Var("k")))], [Stop()])]
    body = [Let("n", Num(-1), True, "unsigned int"), For("k", ZERO, Var("n.max"), [*turn, Set("n", Var("k"))])]
    assert function(routine("", body, {"A.real": "int", "out": "value16"}, "n"), "some").splitlines() == [
        "long some(void *const *a, const long *z) {",
        "  (void)a, (void)z;",
        "  int *restrict A_real = a[0];",
        "  value16 *restrict out = a[1];",
        "  const long n_max = z[0];",
        "  unsigned int n = -1;",
        "  for (long k = 0, k_stop = n_max; k < k_stop; ++k) {",
        "    if (A_real[k]) {",
        "      out[k] = A_real[k];",
        "    } else {",
        "      break;",
        "    }",
        "    n = k;",
        "  }",
        "  return n;",
        "}",
    ]


def test_what_only_conversions_have():
    body = [
        Blank("none", "x", Var("k"), 16),
        Prefetch("x", Var("k")),
        For("i", ZERO, Num(8), [Set("k", Num(1), "+=")], "unroll"),
    ]
    text = function(routine("", body, {"x": "float"}), "f")
    assert "const long none = BLANK(&x[k]);" in text and "__builtin_prefetch(&x[k], 1);" in text
    assert "#pragma GCC unroll 4\n  for (long i = 0" in text


def test_a_workspace_is_there_where_it_is_used():
    marks = routine("", [Scatter(ZERO, Num(0.0))], {}, marks=Num(9))
    text = source({"mark": marks})
    assert "ws_t ws[1]; if (ws_open(ws, 9)) return -1;" in text and text.count("ws_free(ws);") == 1
    assert "ws_t" not in source({"none": routine("", [], {})})
