"""The C that reads entries: from the levels of a stack, from numbers, or from what is not zero in a dense tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.compiler.convert.conversion import Cut, named
from gossamer.compiler.language.program import LevelUse


class Lines:
    """The lines of a C function that walks a source, with the arrays and integers that it takes."""

    def __init__(self) -> None:
        self.arrays: list[str] = []
        self.sizes: list[str] = []
        self.lines: list[str] = []
        self.depth = 1

    def put(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def open(self, line: str) -> None:
        self.put(f"{line} {{")
        self.depth += 1

    def close(self) -> None:
        while self.depth > 1:
            self.depth -= 1
            self.put("}")


@dataclass(frozen=True)
class Walked:
    """A stack of levels as a source of entries; ``dims`` has the dimension of each level and its weight there.

    ``guards`` are dimensions that padding may leave; ``order`` is in which order the levels are walked; ``known`` has
    the sizes of the small ones (0: it is only known when it runs), so that their loops are unrolled.
    """

    levels: tuple[LevelUse, ...]
    dims: tuple[tuple[int, int], ...]
    guards: frozenset[int]
    order: tuple[int, ...]
    known: tuple[int, ...]


def walk(w: Lines, source: Walked, name: str) -> str:
    """Write the loops that come to every entry, with its coordinates in ``name`` 0, 1, ...; return its position.

    A level that has a place for every coordinate may be walked before those above it: it then counts coordinates, and
    is found by them when the position above is known. So is one of a known size, whose loop is then unrolled.
    """
    below = {-1: "0"}  # the position at each level, where it is known already
    for n in source.order:
        level, walk = source.levels[n], source.levels[n].walk
        names = {a: f"{a}_{n}" for a in (*(a for a, _ in level.arrays), *level.numbers)}
        names |= {"q": f"q_{n}", "at": f"at_{n}", "i": f"c_{n}", "size": str(source.known[n] or f"n_{n}")}
        w.arrays += [f"const {ctype} *restrict {array}_{n}" for array, ctype in level.arrays]
        w.sizes += [f"n_{n}", *(f"{number}_{n}" for number in level.numbers)]
        if n - 1 in below and not source.known[n]:
            names["p"] = below[n - 1]
            w.open(f"for (long q_{n} = {named(walk.begin, names)}; q_{n} < {named(walk.end, names)}; ++q_{n})")
            w.put(f"const long at_{n} = {named(walk.at, names)};")
            if walk.real:
                w.put(f"if (!({named(walk.real, names)})) {'break' if walk.ordered else 'continue'};")
            if walk.kept:
                w.put(f"if (!({named(walk.kept, names)})) continue;")
            w.put(f"const unsigned long c_{n} = {named(walk.coord, names)};")
            below[n] = f"at_{n}"
        else:
            w.open(f"for (unsigned long c_{n} = 0; c_{n} < {names['size']}; ++c_{n})")
        walked = source.order[: source.order.index(n) + 1]
        while (m := len(below) - 1) in walked:  # walked before, and now it is known where
            names = {"p": below[m - 1], "i": f"c_{m}", "size": str(source.known[m] or f"n_{m}")}
            w.put(f"const long at_{m} = {named(source.levels[m].walk.locate, names)};")
            below[m] = f"at_{m}"
    w.sizes += [f"d{d}" for d in range(_dims(source))]
    for d, line in enumerate(coordinates(source, name)):
        w.put(line)
        if d in source.guards:
            w.put(f"if ({name}{d} >= d{d}) continue;")
    return below[len(source.levels) - 1]


def _dims(source: Walked) -> int:
    return max(d for d, _ in source.dims) + 1


def coordinates(source: Walked, name: str) -> list[str]:
    """Return the lines that make coordinates of dimensions from those of levels."""
    terms: list[list[str]] = [[] for _ in range(_dims(source))]
    for n, (dim, weight) in enumerate(source.dims):
        terms[dim].append(f"c_{n}" if weight == 1 else f"c_{n} * {weight}")
    return [f"const unsigned long {name}{d} = {' + '.join(sums) or '0'};" for d, sums in enumerate(terms)]


class Reader(Lines):
    """The C of a reader, line by line. Every source comes to coordinates x0, x1, ... of the target's dimensions."""

    def __init__(self, target: Sequence[Cut], key: str, index: str | None) -> None:
        super().__init__()
        self.target, self.key, self.index = target, key, index
        self.sizes = [f"s{n}" for n in range(len(target))]  # where each level's bits begin

    def entry(self, where: str) -> None:
        """Write one entry."""
        fields = [f"(KEY)({cut.expression()}) << s{n}" for n, cut in enumerate(self.target)]
        self.put(f"key[n] = {' | '.join(fields)};")
        if self.index:
            self.put(f"where[n] = {where};")

    def regroup(self, want: int) -> None:
        """From a row-major number to the dimensions of the target."""
        self.sizes += [f"m{d}" for d in range(1, want)]
        for d in range(want - 1, 0, -1):
            self.put(f"const unsigned long x{d} = number % m{d}; number /= m{d};")
        self.put("const unsigned long x0 = number;")

    def source(self) -> str:
        """Return the C function."""
        self.close()
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
    source: Walked, target: Sequence[Cut], regroup: int, key: str, index: str | None
) -> tuple[str, tuple[str, ...]]:
    """Return the C that reads a stack of levels, and the integers that it takes.

    ``regroup`` is the number of the target's dimensions where they are others, and 0 where they are the same.
    """
    r = Reader(target, key, index)
    at = walk(r, source, "y" if regroup else "x")
    if regroup:
        r.put("unsigned long number = y0;")
        for d in range(1, _dims(source)):
            r.put(f"number = number * d{d} + y{d};")
        r.regroup(regroup)
    r.entry(at)
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
    r.regroup(dims)
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
