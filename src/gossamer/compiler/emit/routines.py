"""The C file of nests that convert: each a function of arrays and integers that one thread runs.

A kernel of an expression is shared among threads and writes a result of one type (``emit.unit``). A routine has none of
that: it returns an integer, and the arrays that it writes are of any type.
"""

from __future__ import annotations

from collections.abc import Mapping

from gossamer.compiler.emit.c import Writer
from gossamer.compiler.emit.workspaces import BITS_WORKSPACE
from gossamer.compiler.loops.nest import Nest

#: A value of 16 bytes, which is only copied, and the test of 64 bytes.
_PRELUDE = """\
typedef struct { long part[2]; } value16;
typedef unsigned long word_t __attribute__((aligned(1), may_alias));
static inline long blank(const word_t *w) { return !(w[0] | w[1] | w[2] | w[3] | w[4] | w[5] | w[6] | w[7]); }
#define BLANK(at) blank((const word_t *)(at))
"""


def function(nest: Nest, name: str) -> str:
    """Return the C function of one nest. It returns the nest's result, or -1 if there is no memory for a workspace."""
    writer = Writer(nest)
    for i, (array, ctype) in enumerate(nest.arrays):
        writer.put(f"{ctype} *restrict {writer.name.array(array)} = a[{i}];")
    for i, size in enumerate(nest.sizes):
        writer.put(f"const long {writer.name(size)} = z[{i}];")
    if nest.workspace:
        writer.put(f"ws_t ws[1]; if (ws_open(ws, {writer.expr(nest.workspace_size)})) return -1;")
    writer.depth -= 1
    writer.block(nest.body)
    writer.depth += 1
    if nest.workspace:
        writer.put("ws_free(ws);")
    writer.put(f"return {writer.name(nest.result) if nest.result else '0'};")
    return "\n".join([f"long {name}(void *const *a, const long *z) {{", "  (void)a, (void)z;", *writer.lines, "}"])


def source(nests: Mapping[str, Nest]) -> str:
    """Return the C source of some nests, each under its name.

    Examples
    --------
    >>> from gossamer.compiler.loops.nest import Let, Num
    >>> print(source({"two": Nest("", (), (), [Let("n", Num(2))], result="n")}).split("at))")[1])
    <BLANKLINE>
    long two(void *const *a, const long *z) {
      (void)a, (void)z;
      const long n = 2;
      return n;
    }
    """
    marks = [BITS_WORKSPACE] if any(nest.workspace for nest in nests.values()) else []
    return "\n".join([_PRELUDE, *marks, *(function(nest, name) for name, nest in nests.items())])
