"""From a loop nest to C.

Plain C for the compiler to optimise, except in two places where it would not: a loop in strips keeps its sums in
vectors (``emit.strips``), and sums have vectors of partial sums (``emit.sums``). Integers are 64 bits wide.
"""

from __future__ import annotations

from gossamer.compiler.emit import gathers, strips, sums
from gossamer.compiler.emit.lanes import Lanes, NotLinear
from gossamer.compiler.emit.text import Text
from gossamer.compiler.loops import names
from gossamer.compiler.loops.nest import (
    ONE,
    Acc,
    Append,
    Bin,
    Blank,
    Call,
    Drain,
    Expr,
    Find,
    For,
    If,
    Into,
    Let,
    Load,
    Nest,
    Num,
    Prefetch,
    Scatter,
    Set,
    Stmt,
    Stop,
    Store,
    Var,
    While,
)


class Writer(Text):
    """Writes the function of one nest."""

    def __init__(self, nest: Nest) -> None:
        super().__init__(nest)
        self.rows = (names.OUT_CRD, "int") in nest.arrays  # else entries are appended by their number, which is longer
        self.lanes: Lanes | None = None
        self.carried: set[str] = set()  # loops that begin where they ended in the turn before
        self.only: strips.Strip | None = None  # the size of strip that all columns fit in, in a version for that

    # -- expressions

    def expr(self, e: Expr) -> str:
        if isinstance(e, Num):
            return self.number(e)
        if isinstance(e, Var):
            return self.name(e.name)
        if isinstance(e, Load):
            return f"{self.name.array(e.array)}[{self.expr(e.index)}]"
        if isinstance(e, Call):
            return self.call(e, [self.expr(a) for a in e.args])
        return self.binary(e, self.expr(e.left), self.expr(e.right))

    def step(self, e: Expr) -> int:
        """How far an index moves from lane to lane."""
        assert self.lanes is not None
        if isinstance(e, (Num, Load)):
            if isinstance(e, Load) and self.step(e.index):
                raise NotLinear
            return 0
        if isinstance(e, Var):
            return 1 if e.name == self.lanes.var else self.lanes.moves.get(e.name, 0)
        if isinstance(e, Bin) and e.sign in "+-":
            left, right = self.step(e.left), self.step(e.right)
            return left + right if e.sign == "+" else left - right
        if isinstance(e, Bin) and self.step(e.left) == 0 and self.step(e.right) == 0:
            return 0
        raise NotLinear

    def same(self, *expressions: Expr) -> None:
        """Raise if integers differ from lane to lane: all lanes of a vector take one branch, and find one entry."""
        if self.lanes and any(self.step(e) for e in expressions):
            raise NotLinear

    def varies(self, e: Expr) -> bool:
        """Has a value its own in every lane?"""
        if isinstance(e, Load):
            return self.step(e.index) != 0
        if isinstance(e, Bin):
            return self.varies(e.left) or self.varies(e.right)
        if isinstance(e, Call):
            raise NotLinear
        return isinstance(e, Var) and self.lanes is not None and e.name in self.lanes.held

    def vector(self, e: Expr, u: int) -> str:
        """A value in all lanes of vector u; the same in all of them is left a scalar."""
        lanes = self.lanes
        assert lanes is not None
        if not self.varies(e):
            return self.expr(e)
        if isinstance(e, Load):
            if self.step(e.index) != 1:
                raise NotLinear
            return f"(*(const {lanes.type} *)(&{self.name.array(e.array)}[{self.expr(e.index)}] + {u * lanes.width}))"
        if isinstance(e, Var):
            return f"{self.name(e.name)}_{u}"
        assert isinstance(e, Bin)
        right = self.vector(e.right, u)
        if e.sign == "/":
            right = f"(real){right}"
        return f"({self.vector(e.left, u)} {e.sign} {right})"

    # -- statements

    def statement(self, s: Stmt) -> None:
        if isinstance(s, For):
            self.loop(s)
        elif isinstance(s, While):
            self.same(s.condition)
            self.put(f"while ({self.expr(s.condition)}) {{")
            self.block(s.body)
            if self.lanes and self.nest.long and strips.adds(s.body):
                self.put(f"  ++{self.name(names.ACC)}_turns;")
                strips.end_block(self)
            self.put("}")
        elif isinstance(s, If):
            self.same(s.condition)
            self.put(f"if ({self.expr(s.condition)}) {{")
            self.block(s.body)
            if s.other:
                self.put("} else {")
                self.block(s.other)
            self.put("}")
        elif isinstance(s, Drain) and s.body == [Set(names.COUNT, ONE, "+=")]:
            self.put("out_n += ws_count(ws);")
        elif isinstance(s, Drain) and self.nest.known:
            self.put("ws_read(ws, out_crd + out_n, out + out_n, out_stop - out_n);")
        elif isinstance(s, Drain) and s.body == [Append(Var(s.var), Var(s.value))] and self.rows:
            self.put("out_n += ws_append(ws, out_crd + out_n, out + out_n);")
        elif isinstance(s, Drain):
            self.put(f"DRAIN(ws, {self.name(s.var)}, {self.name(s.value)},")
            self.block(s.body)
            self.put(")")
        else:
            self.simple(s)

    def simple(self, s: Stmt) -> None:
        if isinstance(s, Let):
            if self.lanes:
                self.lanes.moves[s.name] = self.step(s.value)
            self.put(f"{'' if s.varies else 'const '}{s.type} {self.name(s.name)} = {self.expr(s.value)};")
        elif isinstance(s, Set):
            self.put(f"{self.name(s.name)} {s.sign} {self.expr(s.value)};")
        elif isinstance(s, Find):
            self.same(s.begin, s.end, s.coord)
            begin, end, coord = (self.expr(e) for e in (s.begin, s.end, s.coord))
            self.put(f"FIND({self.name(s.name)}, {self.name.array(s.array)}, {begin}, {end}, {coord})")
        elif isinstance(s, Scatter):
            coord = self.expr(s.coord)
            if self.nest.known:
                self.put(f"ws->val[{coord}] += {self.expr(s.value)};")
                return
            self.put(f"ws_mark(ws, {coord});" if s.value == Num(0.0) else f"ws_add(ws, {coord}, {self.expr(s.value)});")
        elif isinstance(s, Append):
            self.put(f"if (out) {{ out_crd[out_n] = {self.expr(s.coord)}; out[out_n] = {self.expr(s.value)}; }}")
            self.put("++out_n;")
        elif isinstance(s, Blank):
            self.put(f"const long {self.name(s.name)} = BLANK(&{self.name.array(s.array)}[{self.expr(s.index)}]);")
        elif isinstance(s, Stop):
            self.put("break;")
        elif isinstance(s, Prefetch):
            self.put(f"__builtin_prefetch(&{self.name.array(s.array)}[{self.expr(s.index)}], 1);")
        elif isinstance(s, Acc):
            self.accumulator(s)
        elif isinstance(s, Into):
            self.into(s)
        elif isinstance(s, Store):
            self.store(s)

    def accumulator(self, s: Acc) -> None:
        if self.lanes:
            acc = self.name(s.name)
            for u in range(self.lanes.count):
                before = f", {acc}_{u}_before" if self.nest.long else ""
                self.put(f"{self.lanes.type} {acc}_{u} = {{0}}{before};")
            if self.nest.long:
                self.put(f"long {acc}_turns = 0; _Bool {acc}_blocks = 0;")
                self.lanes.open = s.name
        else:  # a sum of many numbers has a wider type than they
            ctype = "sum_t" if s.start == 0 else "real"
            self.put(f"{ctype} {self.name(s.name)} = {self.number(Num(s.start))};")

    def into(self, s: Into) -> None:
        if s.sign != "+=":
            if self.lanes:
                raise NotLinear
            self.put(self.extreme(self.name(s.name), s.sign, self.expr(s.value)))
        elif self.lanes:
            for u in range(self.lanes.count):
                self.put(f"{self.name(s.name)}_{u} += {self.vector(s.value, u)};")
        else:
            self.put(f"{self.name(s.name)} += {self.expr(s.value)};")

    def store(self, s: Store) -> None:
        if not self.lanes:
            self.put(f"{self.name.array(s.array)}[{self.expr(s.index)}] {s.sign} {self.expr(s.value)};")
            return
        if self.lanes.open:  # a long sum has blocks before its last one
            acc, self.lanes.open = self.name(self.lanes.open), ""
            added = " ".join(f"{acc}_{u} += {acc}_{u}_before;" for u in range(self.lanes.count))
            self.put(f"if (__builtin_expect({acc}_blocks, 0)) {{ {added} }}")
        if self.step(s.index) != 1:
            raise NotLinear
        lanes, index = self.lanes, self.expr(s.index)
        for u in range(lanes.count):
            value = self.vector(s.value, u) if self.varies(s.value) else f"(({lanes.type}){{0}} + {self.expr(s.value)})"
            self.put(f"*({lanes.type} *)(&{self.name.array(s.array)}[{index}] + {u * lanes.width}) {s.sign} {value};")

    # -- loops

    def loop(self, s: For) -> None:
        if strips.write(self, s) or (self.lanes is None and sums.write(self, s)):
            return
        self.turns(s)

    def turns(self, s: For) -> None:
        """Write the turns of a loop."""
        var, begin, end = self.name(s.var), self.expr(s.begin), self.expr(s.end)
        base = "" if begin == "0" else f"{begin} + "
        sum = gathers.carried(self, s)
        if sum is not None and isinstance(sum.begin, Load):
            first = f"{base}lo" if s.role in ("units", "parts") else begin
            self.put(f"{{ long {self.name(sum.var)} = {self.name.array(sum.begin.array)}[{first}];")
            self.carried.add(sum.var)
        if s.role in ("units", "parts"):
            self.put(f"for (long {var} = {base}lo; {var} < {base}hi; ++{var}) {{")
            self.depth += 1
            if self.nest.appends:
                self.put(f"const long unit = {var}{'' if begin == '0' else f' - {begin}'}; long out_n = start[unit];")
            if self.nest.known:
                self.put("const long out_stop = start[unit + 1];")
                self.put("if (out_n == out_stop) continue;")
            self.depth -= 1
            self.block(s.body)
            if self.nest.appends and not self.nest.known:
                self.put("  if (done) { done[unit] = out_n - start[unit]; if (out) start[unit + 1] = out_n; }")
        else:
            if s.role == "unroll":
                self.lines.append("#pragma GCC unroll 4")
            self.put(f"for (long {var} = {begin}, {var}_stop = {end}; {var} < {var}_stop; ++{var}) {{")
            self.block(s.body)
        self.put("}")
        if sum is not None:
            self.carried.discard(sum.var)
            self.put("}")
