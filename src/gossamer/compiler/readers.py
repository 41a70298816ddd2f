"""The C that reads entries: from the levels of a stack, from numbers, or from what is not zero in a dense tensor."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.compiler.conversion import Cut, named
from gossamer.compiler.program import LevelUse


class Reader:
    """The C of a reader, line by line. Every source comes to coordinates x0, x1, ... of the target's dimensions."""

    def __init__(self, target: Sequence[Cut], key: str, index: str | None) -> None:
        self.target, self.key, self.index = target, key, index
        self.arrays: list[str] = []
        self.sizes = [f"s{n}" for n in range(len(target))]  # where each level's bits begin
        self.lines: list[str] = []
        self.depth = 1

    def put(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def open(self, line: str) -> None:
        self.put(f"{line} {{")
        self.depth += 1

    def entry(self, where: str) -> None:
        """Write one entry."""
        fields = [f"(KEY)({cut.expression()}) << s{n}" for n, cut in enumerate(self.target)]
        self.put(f"key[n] = {' | '.join(fields)};")
        if self.index:
            self.put(f"where[n] = {where};")

    def regroup(self, have: int, want: int) -> None:
        """From a row-major number to the dimensions of the target."""
        self.sizes += [f"m{d}" for d in range(1, want)]
        for d in range(want - 1, 0, -1):
            self.put(f"const unsigned long x{d} = number % m{d}; number /= m{d};")
        self.put("const unsigned long x0 = number;")

    def source(self) -> str:
        """Return the C function."""
        while self.depth > 1:
            self.depth -= 1
            self.put("}")
        head = [
            f"typedef unsigned {self.key} KEY; typedef {self.index or 'int'} INDEX;",
            "long read(void *const *a, const long *z, KEY *restrict key, INDEX *restrict where, long *falls) {",
            "  (void)a, (void)where, (void)falls;",
            *(f"  {line} = a[{n}];" for n, line in enumerate(self.arrays)),
            *(f"  const long {name} = z[{n}];" for n, name in enumerate(self.sizes)),
            "  long n = 0;",
        ]
        return "\n".join([*head, *self.lines, "  return n;", "}", ""])


def reader(
    levels: Sequence[LevelUse],
    dims: Sequence[tuple[int, int]],
    guards: frozenset[int],
    target: Sequence[Cut],
    regroup: int,
    key: str,
    index: str | None,
) -> tuple[str, tuple[str, ...]]:
    """Return the C that reads a stack of levels, and the integers that it takes.

    ``dims`` has the dimension of each level and its weight there; ``guards`` are dimensions that padding may leave;
    ``regroup`` is the number of the target's dimensions where they are others, and 0 where they are the same.
    """
    r = Reader(target, key, index)
    p = "0"
    for n, level in enumerate(levels):
        w = level.walk
        r.arrays += [f"const {ctype} *restrict {name}{n}" for name, ctype in level.arrays]
        r.sizes += [f"n{n}", *(f"{name}{n}" for name in level.numbers)]
        names = {name: f"{name}{n}" for name in (*(a for a, _ in level.arrays), *level.numbers)}
        names |= {"p": p, "q": f"q{n}", "at": f"at{n}", "size": f"n{n}"}
        r.open(f"for (long q{n} = {named(w.begin, names)}; q{n} < {named(w.end, names)}; ++q{n})")
        r.put(f"const long at{n} = {named(w.at, names)};")
        if w.real:
            r.put(f"if (!({named(w.real, names)})) {'break' if w.ordered else 'continue'};")
        if w.kept:
            r.put(f"if (!({named(w.kept, names)})) continue;")
        r.put(f"const unsigned long c{n} = {named(w.coord, names)};")
        p = f"at{n}"
    count = max(d for d, _ in dims) + 1
    r.sizes += [f"d{d}" for d in range(count)]
    name = "y" if regroup else "x"
    for d in range(count):
        terms = [f"c{n}" if w == 1 else f"c{n} * {w}" for n, (dim, w) in enumerate(dims) if dim == d]
        r.put(f"const unsigned long {name}{d} = {' + '.join(terms) or '0'};")
        if d in guards:
            r.put(f"if ({name}{d} >= d{d}) continue;")
    if regroup:
        r.put("unsigned long number = y0;")
        for d in range(1, count):
            r.put(f"number = number * d{d} + y{d};")
        r.regroup(count, regroup)
    r.entry(p)
    r.put("++n;")
    return r.source(), tuple(r.sizes)


def number_reader(number: str, dims: int, target: Sequence[Cut], key: str, index: str) -> tuple[str, tuple[str, ...]]:
    """Return the C that reads row-major numbers in any order; ``falls`` is set where one is not above the last."""
    r = Reader(target, key, index)
    r.arrays.append("const long *restrict in")
    r.sizes.append("entries")
    r.put("long last = -1;")
    r.open("for (long k = 0; k < entries; ++k)")
    r.put("*falls |= in[k] <= last; last = in[k];")
    r.put(f"unsigned {number} number = in[k];")
    r.regroup(0, dims)
    r.entry("k")
    r.put("++n;")
    return r.source().replace("const unsigned long x", f"const unsigned {number} x"), tuple(r.sizes)


_BLOCK = 64  # bytes that are looked at together


def dense_reader(
    ctype: str, test: str, per: int, dims: int, target: Sequence[Cut], key: str, index: str
) -> tuple[str, tuple[str, ...]]:
    """Return the C that reads what is not zero in a contiguous tensor: ``test`` asks that of value ``v``.

    ``per`` is how many numbers a value has: two, if it is complex.
    """
    r = Reader(target, key, index)
    r.arrays.append(f"const {ctype} *restrict in")
    r.sizes += [f"d{d}" for d in range(dims)]
    bytes_each = {"float": 4, "double": 8, "int": 4, "long": 8, "short": 2, "char": 1}[ctype.split()[-1]]
    step = _BLOCK // (bytes_each * per)
    r.put("long from = 0;")
    for d in range(dims - 1):
        r.open(f"for (unsigned long x{d} = 0; x{d} < d{d}; ++x{d})")
    last = f"x{dims - 1}"
    r.open(f"for (long at = 0; at < d{dims - 1}; at += {step})")
    r.put(f"const {ctype} *v = in + (from + at) * {per};")
    r.put(f"const long end = at + {step} < d{dims - 1} ? at + {step} : d{dims - 1};")
    r.put(f"if (end - at == {step} && nothing(v)) continue;")
    r.open(f"for (unsigned long {last} = at; {last} < end; ++{last}, v += {per})")
    r.entry(f"from + {last}")
    r.put(f"n += {test};")
    r.depth -= 1
    r.put("}")
    r.depth -= 1
    r.put("}")
    r.put(f"from += d{dims - 1};")
    return _NOTHING + r.source(), tuple(r.sizes)


_NOTHING = """\
typedef unsigned long word __attribute__((aligned(1), may_alias));
static inline int nothing(const void *v) {
  const word *w = v;
  return !(w[0] | w[1] | w[2] | w[3] | w[4] | w[5] | w[6] | w[7]);
}
"""


def count_source(ctype: str, test: str, per: int) -> str:
    """Return the C that counts what is not zero."""
    return (
        f"long count(const {ctype} *v, long values) {{\n"
        f"  long n = 0;\n  for (long k = 0; k < values; ++k, v += {per}) n += {test};\n  return n;\n}}\n"
    )
