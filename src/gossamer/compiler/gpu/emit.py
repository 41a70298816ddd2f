"""From a loop nest to CUDA.

The outermost loop becomes the grid, one turn for each group of lanes; the loop that the lanes share (``mapping``)
begins at the lane and steps over the others. Innermost sums are written in batches: the loads of several turns come
before the first is used, so that many are under way at once.
"""

from __future__ import annotations

from gossamer.compiler.emit.text import Text
from gossamer.compiler.gpu.bodies import adds_to, once, row_of, straight
from gossamer.compiler.gpu.mapping import Mapping
from gossamer.compiler.gpu.rows import put_row
from gossamer.compiler.loops import names
from gossamer.compiler.loops.nest import (
    ZERO,
    Acc,
    Bin,
    Call,
    Expr,
    Find,
    For,
    If,
    Into,
    Let,
    Load,
    Nest,
    Num,
    Set,
    Stmt,
    Store,
    Var,
    While,
    names_in,
)


class Writer(Text):
    """Writes the body of the kernel of one nest."""

    INFINITY = "(real)__int_as_float(0x7f800000)"

    def __init__(self, nest: Nest, mapping: Mapping) -> None:
        super().__init__(nest)
        self.mapping = mapping
        self.types = dict(nest.arrays)
        self.values = {a for a, _ in nest.arrays if a == names.OUT or a.endswith(".val")}
        self.batched: dict[str, str] = {}  # names that have several values at once, and the name of their number
        self.loaded: dict[Expr, str] = {}  # what a batch has loaded already
        self.vectors = mapping.wide if mapping.role == "strip" else 1  # sums that a lane has
        self.open = ""  # a sum, or a maximum, that the lanes have parts of
        self.level = 0  # the depth of the statements that follow it
        self.tops: set[str] = set()  # which of them are maxima
        self.sharing = False  # are the lanes in the loop that they share?

    # -- expressions

    def expr(self, e: Expr, batch: bool = False) -> str:
        """Return an expression; in a batch, ``u`` is the turn and ``e`` the value of a wide load."""
        if batch and e in self.loaded:
            return self.loaded[e]
        if isinstance(e, Num):
            return self.number(e)
        if isinstance(e, Var):
            name = self.name(e.name)
            if e.name == names.ACC:
                return f"{name}[e]" if self.vectors > 1 else name
            return f"{name}[{self.batched[e.name]}]" if batch and e.name in self.batched else name
        if isinstance(e, Load):
            return self.load(e, batch)
        if isinstance(e, Call):
            return self.call(e, [self.expr(a, batch) for a in e.args])
        return self.binary(e, self.expr(e.left, batch), self.expr(e.right, batch))

    def load(self, e: Load, batch: bool) -> str:
        text = f"{self.name.array(e.array)}[{self.expr(e.index, batch)}]"
        if self.types.get(e.array) == "real" or e.array not in self.values:
            return text
        if self.vectors > 1 and self.mapping.var in names_in(e.index):
            text = f"{self.name.array(e.array)}[{self.expr(e.index, batch)} + e]"
        return f"widen({text})"

    # -- statements

    def statement(self, s: Stmt) -> None:
        if self.open and self.depth == self.level and not adds_to(s, self.open):
            acc, how = self.name(self.open), "highest" if self.open in self.tops else "total"
            self.put(f"{acc} = {how}({acc});")
            self.open = ""
        if isinstance(s, For):
            self.loop(s)
        elif isinstance(s, While):
            self.put(f"while ({self.expr(s.condition)}) {{")
            self.block(s.body)
            self.put("}")
        elif isinstance(s, If):
            self.put(f"if ({self.expr(s.condition)}) {{")
            self.block(s.body)
            if s.other:
                self.put("} else {")
                self.block(s.other)
            self.put("}")
        elif isinstance(s, Let):
            self.put(f"{'' if s.varies else 'const '}idx {self.name(s.name)} = {self.expr(s.value)};")
        elif isinstance(s, Set):
            self.put(f"{self.name(s.name)} {s.sign} {self.expr(s.value)};")
        elif isinstance(s, Find):
            begin, end, coord = (self.expr(e) for e in (s.begin, s.end, s.coord))
            self.put(f"FIND({self.name(s.name)}, {self.name.array(s.array)}, {begin}, {end}, {coord})")
        elif isinstance(s, Acc):
            start = self.number(Num(s.start))
            if self.vectors > 1:
                self.put(f"real {self.name(s.name)}[{self.vectors}] = {{}};")
            else:
                self.put(f"real {self.name(s.name)} = {start};")
            self.open, self.level = (s.name, self.depth) if self.mapping.role == "sum" else ("", 0)
            self.tops |= {s.name} if s.start < 0 else set()
        elif isinstance(s, Into):
            self.into(s)
        else:
            assert isinstance(s, Store)
            self.store(s)

    def into(self, s: Into) -> None:
        text = self.combined(s, self.expr(s.value))
        self.put(self.each(text) if self.vectors > 1 else text)

    def combined(self, s: Into, value: str) -> str:
        """Return the statement that takes a value into a sum, or a maximum."""
        acc = f"{self.name(s.name)}{'[e]' if self.vectors > 1 else ''}"
        if s.sign == "+=":
            return f"{acc} += {value};"
        return self.extreme(acc, s.sign, value)

    def each(self, text: str) -> str:
        return f'_Pragma("unroll") for (int e = 0; e < {self.vectors}; ++e) {text}'

    def store(self, s: Store) -> None:
        array, index, value = self.name.array(s.array), self.expr(s.index), self.expr(s.value)
        narrow = "" if self.types[s.array] == "real" else "narrow"
        if self.vectors > 1:
            kind = "Sums" if self.types[s.array] == "real" else "Line"
            self.put(f"{{ {kind} line_;")
            self.put("  " + self.each(f"line_.e[e] = {narrow}({value});"))
            self.put(f"  *({kind}*)({array} + {index}) = line_; }}")
            return
        if s.sign == "+=":
            value = f"{'' if self.types[s.array] == 'real' else 'widen'}({array}[{index}]) + {value}"
        guard = "if (active) " if self.sharing else "if (active && lane == 0) "
        guard = guard if self.mapping.role == "sum" else ""
        self.put(f"{guard}{array}[{index}] = {narrow}({value});")

    # -- loops

    def loop(self, s: For) -> None:
        var = self.name(s.var)
        if s.role in ("units", "parts"):
            self.put(f"{{ const idx {var} = {'' if s.begin == ZERO else self.expr(s.begin) + ' + '}unit;")
            self.block(s.body)
            self.put("}")
        elif s.role == "strip" and self.mapping.role == "strip":
            step = self.mapping.lanes * self.mapping.wide
            self.put(f"const idx {var} = (idx)blockIdx.y * {step} + lane * {self.mapping.wide};")
            self.put(f"if ({var} < {self.expr(s.end)}) {{")
            self.block(s.body)
            self.put("}")
        elif s.var == self.mapping.batch:
            self.put(f"{{ const idx {var} = blockIdx.z;")
            self.block(s.body)
            self.put("}")
        elif once(s):
            self.put(f"{{ const idx {var} = {self.expr(s.begin)};")
            self.block(s.body)
            self.put("}")
        elif (body := straight(s.body)) is not None:
            self.batch(s, body)
        elif self.mapping.lines and (row := row_of(s, self.mapping.var)) is not None:
            put_row(self, s, row)
        else:
            start, step = self.range(s)
            end = f"{var}_end"
            self.put(f"for (idx {var} = {start}, {end} = {self.expr(s.end)}; {var} < {end}; {var} += {step}) {{")
            self.sharing = self.sharing or self.shared(s)
            self.block(s.body)
            self.sharing = self.sharing and not self.shared(s)
            self.put("}")

    def shared(self, s: For) -> bool:
        """Do the lanes share this loop?"""
        here = {s.var, *(x.name for x in s.body if isinstance(x, Let))}
        return self.mapping.role == "sum" and self.mapping.var in here

    def range(self, s: For) -> tuple[str, int]:
        """Where a lane begins, and how far it steps."""
        begin = self.expr(s.begin)
        if not self.shared(s):
            return begin, 1
        return f"{begin} + lane * {self.mapping.wide}", self.mapping.lanes * self.mapping.wide

    def batch(self, s: For, body: list[Stmt]) -> None:
        """Write a sum with the loads of several turns under way at once."""
        var, count, (start, step) = self.name(s.var), self.mapping.unroll, self.range(s)
        wide = self.mapping.wide if self.mapping.wide > 1 and (self.vectors > 1 or self.shared(s)) else 1
        end, first = f"{var}_end", f"{var}_0"
        self.put(
            f"for (idx {first} = {start}, {end} = {self.expr(s.end)}; {first} < {end}; {first} += {count * step}) {{"
        )
        self.depth += 1
        self.batched = dict.fromkeys([s.var, *(x.name for x in body if isinstance(x, Let))], "u")
        self.turns("idx", var, f"{var}_0 + u * {step}", count, "")
        there = f"if ({var}[u] < {end}) "
        *lets, into = body
        for x in lets:
            assert isinstance(x, Let)
            self.turns("idx", self.name(x.name), self.expr(x.value, True), count, there)
        assert isinstance(into, Into)
        for number, load in enumerate(self.loads(into.value)):
            inside = wide > 1 and self.mapping.var in names_in(load.index)
            array, index = self.name.array(load.array), self.expr(load.index, True)
            real = self.types[load.array] == "real"
            kind = ("Sums" if real else "Line") if inside else ("real" if real else "Element")
            text = f"*(const {kind}*)({array} + {index})" if inside else f"{array}[{index}]"
            self.turns(kind, f"t{number}_", text, count, there)
            found = f"t{number}_[u]{'.e[e]' if inside else ''}"
            self.loaded[load] = found if real else f"widen({found})"
        inner = self.combined(into, self.expr(into.value, True))
        if wide > 1:
            inner = f'_Pragma("unroll") for (int e = 0; e < {wide}; ++e) {inner}'
        self.put(f'_Pragma("unroll") for (int u = 0; u < {count}; ++u) {there}{{ {inner} }}')
        self.batched, self.loaded = {}, {}
        self.depth -= 1
        self.put("}")

    def turns(self, kind: str, name: str, text: str, count: int, there: str) -> None:
        """Write a value for each turn of a batch."""
        self.put(f"{kind} {name}[{count}];")
        self.put(f'_Pragma("unroll") for (int u = 0; u < {count}; ++u) {there}{name}[u] = {text};')

    def loads(self, e: Expr) -> list[Load]:
        """Loads of values in an expression, each once."""
        if isinstance(e, Load):
            return [e]
        parts = e.args if isinstance(e, Call) else (e.left, e.right) if isinstance(e, Bin) else ()
        return list(dict.fromkeys(load for part in parts for load in self.loads(part)))
