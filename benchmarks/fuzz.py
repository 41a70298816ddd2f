"""Is the compiler right? Random expressions on random operands, against dense tensors, by the thousand.

    python benchmarks/fuzz.py [--cases N] [--seed S] [--asan N] [--out FILE] [--add FILE ...]

A case is a number, from which all else is drawn: 1 to 8 operands of 0 to 5 dimensions, sizes 0 to 12 and some large,
any letters or words as indices, any format or stack of levels, any type; sums, products, functions, broadcasts,
diagonals, '...', reductions, affine access, functions of the user, any format for the result, results written into a
tensor, and gradients. The oracle is ``interpret`` on dense tensors. Each call is repeated, with gradients and without.
``--add`` puts the results of earlier runs into one file, with the commit of each.
Cases run in processes of their own with MALLOC_PERTURB_ set, so that memory nobody wrote is never zero, and with
``--asan`` some of them with kernels that check every address.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import random
import string
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import gossamer as gs
from gossamer.compiler import interpret, parse
from gossamer.compiler.language.types import types
from gossamer.core.join import gather
from gossamer.formats.levels import Fixed, FixedLanes, HalfLanes, Lanes, Level, NearLanes, Slots

RESULT = Path(__file__).parent / "results" / "fuzz.json"
WORDS = ("int", "long", "n", "row", "col", "out", "acc", "w", "size", "x_1", "A", "i", "j", "ws", "typedef", "feature")
SPACE = 60_000  # points of the index space, at most: the oracle visits all of them
FLOATS = (torch.float64, torch.float64, torch.float64, torch.float32, torch.float32, torch.float16, torch.bfloat16)
OTHERS = (torch.int32, torch.int64, torch.int8, torch.uint8, torch.int16, torch.bool, torch.complex64)
UNARY = ("relu", "abs", "sin", "tanh", "square", "neg", "sign", "-")
MATRICES = (
    gs.CSR(), gs.CSC(), gs.COO(), gs.DCSR(), gs.BSR((2, 3)), gs.BSR((4, 4), order=(1, 0)), gs.ELL(), gs.Masked(),
    gs.formats.PackedCSR(), gs.formats.PackedCSR(7), gs.formats.PackedCSR(order=(1, 0)), gs.formats.PackedNear(),
    gs.formats.Condensed(), gs.Format("dense", "fixed", order=(1, 0)), gs.Format("compressed", "dense"),
)  # fmt: skip
RESULTS = (gs.Dense(), gs.COO(), gs.CSR(), gs.CSC(), gs.CSF(), gs.DCSR(), gs.Masked(), gs.ELL(), gs.BSR((2, 2)))
#: What is refused with a reason, as by torch: types that an operation does not have.
REFUSED = ("torch has no such operation", "bools can't be contracted", "a mean of", "there is no m")


#: Functions of the user, with the number of their arguments: zero at zero or not, with a slope of their own or not.
OWN = {
    "capped": ("3 * tanh(x / 3)", None, 1),
    "shifted": ("relu(x + 0.5)", None, 1),
    "bent": ("where(x > 0, x, 0.25 * x)", "where(x > 0, 1, 0.25)", 1),
    "blend": ("0.75 * x + 0.25 * y * square(y)", None, 2),
    "gate": ("x * tanh(y)", ("tanh(y)", "x * (1 - square(tanh(y)))"), 2),
}
for _name, (_body, _slope, _) in OWN.items():
    gs.function(_name, _body, _slope)


@dataclass
class Window:
    """A dimension of an operand that is read at ``stride * place + step * offset``."""

    operand: int
    dim: int
    places: int
    offsets: int
    stride: int
    step: int

    def cut(self, x: torch.Tensor) -> torch.Tensor:
        """The operand with two dimensions for the one, by an index for each pair."""
        at = self.stride * torch.arange(self.places)[:, None] + self.step * torch.arange(self.offsets)
        return x.index_select(self.dim, at.reshape(-1)).unflatten(self.dim, (self.places, self.offsets))


@dataclass
class Operand:
    """One operand: its indices, shape, format (None: dense), density, and how its memory is laid out."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    format: gs.Format | None
    density: float
    strided: bool = False
    grad: bool = False
    twin: bool = False  # it has the pattern of the operand before it


@dataclass
class Case:
    """An expression on operands."""

    expression: str
    operands: list[Operand]
    dtype: torch.dtype
    out: gs.Format | None
    seed: int
    fill: float = 0.0
    beta: float | None = None  # the result is also written into a tensor, which is multiplied by this before
    window: Window | None = None
    plain: str = ""  # the expression without affine access
    tensors: list[torch.Tensor] = field(default_factory=list, repr=False)

    def build(self) -> None:
        """Make the operands; a format that refuses one is replaced by COO."""
        generator = torch.Generator().manual_seed(self.seed)
        for o in self.operands:
            x = torch.empty(o.shape).uniform_(-2, 2, generator=generator)
            if not self.dtype.is_floating_point and not self.dtype.is_complex:
                # small numbers: torch's integers wrap around after each step
                x = x.abs() if self.dtype == torch.uint8 else x
                x = x.round() if len(self.operands) < 3 else x.sign()
            mask = _dense(self.tensors[-1]) != 0 if o.twin else torch.rand(o.shape, generator=generator) < o.density
            x = (x * mask).to(self.dtype)
            if o.format is None:
                if o.strided and x.dim() > 1:
                    x = x.transpose(0, -1).contiguous().transpose(0, -1)
                self.tensors.append(x)
                continue
            try:
                self.tensors.append(gs.from_dense(x, o.format))
            except ValueError:
                o.format = gs.COO()
                self.tensors.append(gs.from_dense(x, o.format))

    def wrong(self) -> str | None:
        """Compute it; return what is wrong with the result, or None."""
        self.build()
        given = [t.detach().requires_grad_(o.grad) for t, o in zip(self.tensors, self.operands, strict=True)]
        before = [_values(t).clone() for t in self.tensors]
        dims = [t.dim() + (self.window is not None and self.window.operand == k) for k, t in enumerate(given)]
        statement = parse(self.plain or self.expression, dims)
        dense = [_dense(t.detach()).requires_grad_(o.grad) for t, o in zip(self.tensors, self.operands, strict=True)]
        try:
            got = gs.einsum(self.expression, *given, out=self.out, fill=self.fill)
        except (TypeError, ValueError) as error:
            return None if any(why in str(error) for why in REFUSED) else f"{type(error).__name__}: {error}"
        exact = [_exact(d) for d in dense]
        if self.fill:
            pairs = zip(exact, self.tensors, strict=True)
            exact = [torch.where(t.mask(), d, self.fill) if isinstance(t, gs.SparseTensor) else d for d, t in pairs]
        if self.window is not None:
            exact[self.window.operand] = self.window.cut(exact[self.window.operand])
        try:
            want = interpret(statement, exact)
        except RuntimeError as error:  # einsum adds what is negated, for which torch has more types
            return None if "bool tensor is not supported" in str(error) else f"the oracle says {error}"
        said = self._judge(got, want, statement, [d.dtype for d in dense])
        # a sparse result keeps what is not zero, and only its gradients
        dense_out = self.out is None or isinstance(self.out, gs.Dense)
        if said is None and dense_out and any(o.grad for o in self.operands):
            said = self._judge_gradients(got, want, given, dense)
        if said is None:
            said = self._judge_again(got, given)
        if said is None and self.beta is not None:
            said = self._judge_into(got, want, given)
        if said is None and not all(torch.equal(_values(t), b) for t, b in zip(self.tensors, before, strict=True)):
            said = "an operand was changed"
        return said

    def _judge(self, got: Any, want: torch.Tensor, statement: Any, dtypes: list[torch.dtype]) -> str | None:
        if isinstance(got, gs.SparseTensor):
            got.structure.check(got._values.detach())
        if self.out is not None and (got.format if isinstance(got, gs.SparseTensor) else gs.Dense()) != self.out:
            return f"the result is not in {self.out}"
        result = _dense(got).detach()
        kind = types_of(statement, dtypes)
        if result.shape != want.shape:
            return f"shape {tuple(result.shape)}, should be {tuple(want.shape)}"
        if result.dtype != kind:
            return f"type {result.dtype}, should be {kind}"
        return None if self._close(result, want.detach().to(kind)) else "values"

    def _close(self, got: torch.Tensor, want: torch.Tensor) -> bool:
        if not got.dtype.is_floating_point and not got.dtype.is_complex:
            return torch.equal(got, want)
        finite = want[want.isfinite()]  # an infinite bound would let everything pass
        size, units = max(float(finite.abs().max()) if finite.numel() else 0.0, 1.0), 40.0 * 2 ** len(self.operands)
        if got.dtype.itemsize > 2:  # terms may cancel out, and n of them add up n errors; half is summed in more bits
            terms = self._terms(got.numel())
            size, units = max(size, terms / 64), max(units, terms / 8)
        scale = size * units
        bits = torch.finfo(self.dtype).eps if self.dtype.is_floating_point or self.dtype.is_complex else 2**-23
        return torch.allclose(
            got.to(torch.complex128), want.to(torch.complex128), rtol=0, atol=scale * bits, equal_nan=True
        )

    def _terms(self, places: int) -> float:
        """How many terms a sum has, at most."""
        sizes: dict[str, int] = {}
        for o in self.operands:
            sizes |= {v: max(size, sizes.get(v, 1)) for v, size in zip(o.names, o.shape[-len(o.names) :], strict=False)}
        return _points(sizes) / max(places, 1)

    def _judge_into(self, got: Any, want: torch.Tensor, given: list[Any]) -> str | None:
        """Compute it once more, into a tensor that holds something."""
        assert self.beta is not None
        generator = torch.Generator().manual_seed(self.seed + 2)
        out = torch.empty(got.shape).uniform_(-2, 2, generator=generator).to(got.dtype)
        if isinstance(got, gs.SparseTensor):
            kept = torch.where(got.detach().mask(), out, 0).to(got.dtype)
            out = gs.SparseTensor(gather(kept, got.structure), got.structure)
        elif out.dim() == 2 and self.seed % 2:
            out = out.t().contiguous().t()
        before = _dense(out).clone()
        made = gs.einsum(self.expression, *given, out=out, beta=self.beta, fill=self.fill)
        wanted = (want.detach().to(before.dtype) + self.beta * before).to(before.dtype)
        # padding of a format holds no entry: only what is stored is added
        wanted = torch.where(out.mask(), wanted, 0) if isinstance(out, gs.SparseTensor) else wanted
        if made is not out:
            return "what was written to was not returned"
        return None if self._close(_dense(out).detach(), wanted) else "the tensor that was written to"

    def _judge_again(self, got: Any, given: list[Any]) -> str | None:
        """Repeat the call, with gradients and without: it takes other ways through the caches each time."""
        first, leaves = _dense(got).detach(), [t for t, o in zip(given, self.operands, strict=True) if o.grad]
        slopes: list[Any] = []
        for follow in (*[True] * 4, *[False] * 4, True):  # the fourth call of a kind is a remembered one
            with torch.set_grad_enabled(follow):
                again = gs.einsum(self.expression, *given, out=self.out, fill=self.fill)
            if type(again) is not type(got) or not self._close(_dense(again).detach(), first):
                return "a repeated call"
            if not follow or not again.requires_grad:
                continue
            total = _dense(again).sum()
            slopes.append(torch.autograd.grad(total, leaves, allow_unused=True) if leaves else ())
        for found, expected in zip(zip(*slopes[1:], strict=True), slopes[0] if slopes else (), strict=False):
            if any((f is None) != (expected is None) for f in found):
                return "the gradient of a repeated call"
            if expected is not None and not all(self._close(_dense(f), _dense(expected)) for f in found):
                return "the gradient of a repeated call"
        return None

    def _judge_gradients(self, got: Any, want: torch.Tensor, given: list[Any], dense: list[torch.Tensor]) -> str | None:
        generator = torch.Generator().manual_seed(self.seed + 1)
        weight = torch.empty(want.shape).uniform_(-1, 1, generator=generator)
        if not want.requires_grad:
            return None
        (want * weight).sum().backward()
        result = got.to_dense() if isinstance(got, gs.SparseTensor) else got
        (result * weight.to(result.dtype)).sum().backward()
        for t, d, o in zip(given, dense, self.operands, strict=True):
            if not o.grad:
                continue
            expected = torch.zeros_like(d) if d.grad is None else d.grad
            found = torch.zeros_like(d) if t.grad is None else _dense(t.grad)
            if isinstance(t, gs.SparseTensor):
                expected = expected * t.detach().mask()
            if not self._close(found, expected):
                return f"gradient of operand {o.names}"
        return None


def types_of(statement: Any, dtypes: list[torch.dtype]) -> torch.dtype:
    """The type of a result: that of the last of its steps."""
    from gossamer.ops.planned import path_of

    known = list(dtypes)
    for step in path_of(statement, [torch.empty(0, dtype=dtype) for dtype in dtypes]):
        known.append(types(step.statement, [known[n] for n in step.operands]).result)
    return known[-1]


def _dense(t: Any) -> torch.Tensor:
    return t.to_dense() if isinstance(t, gs.SparseTensor) else t


def _values(t: Any) -> torch.Tensor:
    return t._values.detach() if isinstance(t, gs.SparseTensor) else t.detach()


def _exact(d: torch.Tensor) -> torch.Tensor:
    """An operand of the oracle: in double precision, and connected to the operand for gradients."""
    return d.double() if d.dtype.is_floating_point else d


# -- drawing


def case(seed: int, share: int = 1) -> Case:
    """Return the case of a number. Of each ``share`` numbers in a row only the first differs in more than data.

    So the others need no kernel that it did not need: the letters, sizes and values are drawn anew, nothing else.
    """
    shape, data = random.Random(seed // share), random.Random(seed)
    return _Drawing(shape, data if share > 1 else shape, random.Random(-1 - seed // share)).case(seed)


class _Drawing:
    def __init__(self, rng: random.Random, data: random.Random, more: random.Random) -> None:
        self.rng, self.data = rng, data
        self.more = more  # for what was added later: the rest of a case stays as it was

    def case(self, seed: int) -> Case:
        rng = self.rng
        count = rng.choice((1, 1, 2, 2, 2, 2, 3, 3, 4, 5, 6, 8))
        indices = [f"<{n}>" for n in range(rng.randint(1, 5 if count < 4 else 3))]
        groups = [self._group(indices, count) for _ in range(count)]
        twins = [k for k in range(1, count) if rng.random() < 0.15]
        for k in twins:
            groups[k] = groups[k - 1]
        functions = rng.random() < 0.4
        self.dtype = rng.choice(FLOATS) if rng.random() < 0.8 else rng.choice(OTHERS)
        reduce = rng.choice(("", "", "", "max: ", "min: ", "mean: ")) if functions or rng.random() < 0.1 else ""
        semiring = reduce in ("min: ", "max: ") and rng.random() < 0.5 and self.dtype in FLOATS
        self.left = list(range(count))
        tree = self._tree(count) if functions or count > 5 else ", ".join(f"{{{k}}}" for k in range(count))
        tree = " + ".join(f"{{{k}}}" for k in range(count)) if semiring else tree
        used = list(dict.fromkeys(v for g in groups for v in g))
        rng.shuffle(used)
        output = used[: rng.randint(0, len(used))]
        dots = [k for k in range(count) if rng.random() < 0.15] if reduce == "" and "(" not in tree else []
        dots = [k for k in dots if k not in twins and k + 1 not in twins]
        sizes = self._sizes(indices, reduce != "", groups)
        # beside "...", words may have as few letters as there are dimensions, and are read as letters
        names = self._names(indices, any(len(g) > 1 for g in groups) and not dots)
        wide = rng.choice((1, 2)) if dots else 0
        operands = [self._operand(g, [sizes[v] for v in g], k in dots, wide, names) for k, g in enumerate(groups)]
        for k in twins:
            operands[k] = replace(operands[k - 1], grad=operands[k].grad, twin=True)
        words = any(len(names[v]) > 1 for v in indices)
        spelled = [self._spelled([names[v] for v in g], k in dots, words) for k, g in enumerate(groups)]
        head = tree.format(*(s or "()" for s in spelled) if "(" in tree or "+" in tree or "*" in tree else spelled)
        text = f"{reduce}{head} -> {'... ' if dots else ''}{self._spelled([names[v] for v in output], False, words)}"
        out = rng.choice(RESULTS) if rng.random() < 0.3 else None
        if out is not None and not isinstance(out, gs.Dense) and not (len(output) + wide):
            out = None
        fill = 0.0
        if semiring:
            fill, out = float("inf") if reduce == "min: " else float("-inf"), None
        beta = self.more.choice((0.0, 1.0, -0.5)) if self.more.random() < 0.2 else None
        beta = None if beta == -0.5 and self.dtype not in FLOATS else beta
        made = Case(text, operands, self.dtype, out, seed, fill, beta)
        product = not reduce and not any(sign in tree for sign in "(+*")
        if product and not dots and not twins and count > 1 and self.more.random() < 0.3:
            self._affine(made, [[names[v] for v in g] for g in groups], [names[v] for v in output])
        return made

    def _affine(self, made: Case, groups: list[list[str]], output: list[str]) -> None:
        """Read a dimension of an operand at a sum of two indices, if another operand has one of them alone."""
        more = self.more
        sizes: dict[str, int] = {}
        for group, o in zip(groups, made.operands, strict=True):
            sizes |= {v: max(size, sizes.get(v, 0)) for v, size in zip(group, o.shape, strict=True)}
        found = [
            (k, d, offset)
            for k, group in enumerate(groups)
            for d, place in enumerate(group)
            for offset in sorted({v for j, g in enumerate(groups) for v in g if j != k} - set(group))
            if group.count(place) == 1 and sizes[place] and sizes[offset] and not self._small(made, groups, offset)
        ]
        if not found:
            return
        k, d, offset = more.choice(found)
        stride, step, place = more.choice((1, 1, 2)), more.choice((1, 1, 3)), groups[k][d]
        places, offsets = sizes[place], sizes[offset]
        o = made.operands[k]
        long = stride * (places - 1) + step * (offsets - 1) + 1
        made.operands[k] = replace(o, shape=(*o.shape[:d], long, *o.shape[d + 1 :]))
        made.window = Window(k, d, places, offsets, stride, step)
        first, second = (f"{n}*{v}" if n > 1 else v for n, v in ((stride, place), (step, offset)))
        cut = [*groups[k][:d], place, offset, *groups[k][d + 1 :]]
        read = [*groups[k][:d], f"{first}+{second}", *groups[k][d + 1 :]]
        for both in (cut, read):
            spelled = [" ".join(g) for g in groups]
            spelled[k] = " ".join(both)
            made.plain, made.expression = made.expression, f"{', '.join(spelled)} -> {' '.join(output)}"

    def _small(self, made: Case, groups: list[list[str]], index: str) -> bool:
        """Does an operand broadcast along an index?"""
        found = {o.shape[d] for g, o in zip(groups, made.operands, strict=True) for d, v in enumerate(g) if v == index}
        return len(found) > 1

    def _group(self, indices: list[str], count: int) -> tuple[str, ...]:
        rng = self.rng
        most = min(5 if count < 3 else 3 if count < 5 else 2, len(indices))
        group = rng.sample(indices, rng.randint(0 if count > 1 else 1, most))
        if group and rng.random() < 0.06 and len(group) < 5:
            group.append(rng.choice(group))  # a diagonal
        return tuple(group)

    def _sizes(self, indices: list[str], nonzero: bool, groups: list[tuple[str, ...]]) -> dict[str, int]:
        data = self.data
        least = 1 if nonzero or data.random() < 0.9 else 0
        sizes = {v: data.randint(least, 12) for v in indices}
        if data.random() < 0.15:
            sizes[data.choice(indices)] = data.choice((17, 33, 64, 100, 257, 1000, 5000))
        # an operand with a diagonal is larger than the space of its indices, and bitmaps are larger still
        while _points(sizes) > SPACE or any(math.prod(sizes[v] for v in g) > 16 * SPACE for g in groups):
            v = max(sizes, key=lambda v: sizes[v])
            sizes[v] = max(sizes[v] // 2, 1)
        return sizes

    def _names(self, indices: list[str], spaced: bool) -> dict[str, str]:
        words = self.data.random() < 0.15 and spaced
        drawn = self.data.sample(WORDS if words else string.ascii_letters, len(indices))
        return dict(zip(indices, drawn, strict=True))

    def _spelled(self, names: list[str], dots: bool, words: bool) -> str:
        return (" " if words else "").join([*(["..."] if dots else []), *names])

    def _operand(
        self, group: tuple[str, ...], sizes: list[int], dots: bool, wide: int, names: dict[str, str]
    ) -> Operand:
        rng, data = self.rng, self.data
        hidden = [rng.choice((1, 2, 3)) if d == 0 else 3 for d in range(rng.randint(0, wide))] if dots else []
        shape = [*(3 if h != 1 else 1 for h in hidden), *sizes]
        for d in range(len(hidden), len(shape)):
            if rng.random() < 0.05 and group.count(group[d - len(hidden)]) == 1:
                shape[d] = 1  # it broadcasts
        format = self._format(len(shape)) if rng.random() < 0.7 else None
        density = data.choice((0.0, 0.1, 0.3, 0.3, 0.6, 1.0))
        grad = self.dtype in (torch.float64, torch.float32) and rng.random() < 0.3
        return Operand(tuple(names[v] for v in group), tuple(shape), format, density, rng.random() < 0.3, grad)

    def _format(self, ndim: int) -> gs.Format | None:
        rng = self.rng
        if ndim == 0:
            return None
        order = rng.sample(range(ndim), ndim)
        if rng.random() < 0.35:
            try:
                return gs.Format(*(self._level() for _ in range(ndim)), order=order)
            except ValueError:
                return gs.CSF()
        plain = gs.Format(*(rng.choice(("dense", "compressed")) for _ in range(ndim)), order=order)
        return rng.choice([gs.COO(), gs.CSF(), gs.Masked(), plain, plain, *MATRICES])

    def _level(self) -> str | Level:
        rng = self.rng
        return rng.choice([
            "dense", "compressed", "compressed", "bitmap", "compressed-nonunique", "singleton", "fixed", Fixed(12),
            Slots(), Lanes(), NearLanes(), FixedLanes(rng.randint(4, 12)), HalfLanes(12),
        ])  # fmt: skip

    def _tree(self, count: int) -> str:
        """A tree over all operands, in their order."""
        if count == 1:
            text = f"{{{self.left.pop(0)}}}"
        else:
            left = self.rng.randint(1, count - 1)
            sides = self._tree(left), self._tree(count - left)
            sign = self.rng.choice(("+", "-", "*", "*", "max", "min", "/", ">"))
            text = f"{sign}({', '.join(sides)})" if sign in ("max", "min") else f"({sides[0]} {sign} {sides[1]})"
            if self.more.random() < 0.1 and self.dtype in FLOATS:
                name = self.more.choice([name for name, own in OWN.items() if own[2] == 2])
                text = f"{name}({', '.join(sides)})"
            elif sign == "/":  # by what is never near zero
                text = f"({sides[0]} / (2 + square({sides[1]})))"
            elif sign == ">":  # of operands alone: nothing is rounded that is compared
                first = f"{{{left_of(sides[0])}}}"
                text = f"where({first} > 0.5, {sides[1]}, 0)" if sides[0] == first else f"({sides[0]} - {sides[1]})"
        if self.rng.random() < 0.25 and not self.dtype.is_complex:
            name = self.rng.choice(UNARY)
            text = f"-{text}" if name == "-" else f"{name}({text})"
        if self.rng.random() < 0.1:
            text = f"{self.rng.choice(('2', '0.5', '3.0'))} * {text}"
        if self.more.random() < 0.08 and self.dtype in FLOATS:
            text = f"{self.more.choice([name for name, own in OWN.items() if own[2] == 1])}({text})"
        if self.rng.random() < 0.08:
            text = f"sum({text})"
        if self.rng.random() < 0.05 and not self.dtype.is_complex:
            text = f"exp(-square({text}))"
        return text


def left_of(text: str) -> str:
    """The number of the first operand in a text."""
    return text.partition("{")[2].partition("}")[0]


def _points(sizes: dict[str, int]) -> int:
    total = 1
    for size in sizes.values():
        total *= max(size, 1)
    return total


# -- running many


class _Built(logging.Handler):
    """A kernel that can't be built is an error here, not a reason to compute on dense copies."""

    def emit(self, record: logging.LogRecord) -> None:
        if "can't be built" in record.getMessage():
            raise AssertionError(record.getMessage()[-3000:])


def work(first: int, last: int, share: int = 1) -> None:
    """Run cases in this process, a line for each before and after it."""
    torch.set_num_threads(1)
    logging.getLogger("gossamer").addHandler(_Built())
    for seed in range(first, last):
        print(f"? {seed}", flush=True)
        try:
            made = case(seed, share)
            said = made.wrong()
        except Exception as error:
            said = f"{type(error).__name__}: {str(error)[-400:]}"
            made = None
        print(f"= {seed} {'right' if said is None else json.dumps(f'{said} | {made}')}", flush=True)


def _asan() -> dict[str, str]:
    """The environment of kernels with address checks. ASan intercepts C++ exceptions, so libstdc++ is loaded first."""
    found = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so.6")
    ]
    return {"GOSSAMER_SANITIZE": "address", "LD_PRELOAD": ":".join(found), "ASAN_OPTIONS": "detect_leaks=0"}


def run(first: int, last: int, counts: Counter[str], asan: bool = False, share: int = 1) -> list[str]:
    """Run cases in processes, each for a few hundred; a crash costs one case. Return what is wrong."""
    wrong: list[str] = []
    environment = {**os.environ, "MALLOC_PERTURB_": "165", "OMP_NUM_THREADS": "1"}
    environment |= _asan() if asan else {}
    while first < last:
        end = min(first + 400, last)
        command = [sys.executable, __file__, "--work", str(first), str(end), str(share)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        for line in lines:
            if line.startswith("= "):
                seed, said = line[2:].split(" ", 1)
                counts["right" if said == "right" else "wrong"] += 1
                if said != "right":
                    wrong.append(f"{seed}: {json.loads(said)}")
                    print(wrong[-1], flush=True)
        asked = [int(line[2:]) for line in lines if line.startswith("? ")]
        finished = sum(line.startswith("= ") for line in lines)
        first = end
        if finished < len(asked) or not asked:
            crashed = asked[-1] if asked else first
            counts["crash"] += 1
            wrong.append(f"{crashed}: ended with {done.returncode}: {done.stderr[-1500:]}")
            print(wrong[-1], flush=True)
            first = crashed + 1
    return wrong


def commit() -> str:
    """The commit that is checked out here, or "" in a copy without a history."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def together(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The runs of several files in one: all cases, then each run with its commit and what it found."""
    cases, asan = Counter[str](), Counter[str]()
    for one in runs:
        cases.update(one["cases"])
        asan.update(one["asan"])
    by_commit: dict[str, Counter[str]] = {}
    for one in runs:
        by_commit.setdefault(one.get("commit", ""), Counter()).update(one["cases"])
    return {
        "cases": dict(cases),
        "asan": dict(asan),
        "by commit": {name: dict(counts) for name, counts in by_commit.items()},
        "wrong": [text for one in runs for text in one["wrong"]],
        "seconds": sum(one["seconds"] for one in runs),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="the first case")
    parser.add_argument("--asan", type=int, default=0, help="how many of them to run with address checks too")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--add", type=Path, nargs="+", help="results of runs: put them together instead of running")
    parser.add_argument("--work", type=int, nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.work:
        work(*args.work)
        return
    if args.add:
        args.out.write_text(json.dumps(together([json.loads(p.read_text()) for p in args.add]), indent=1) + "\n")
        return
    started, counts, checked = time.perf_counter(), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["GOSSAMER_CACHE"] = cache
        wrong = run(args.seed, args.seed + args.cases, counts)
        wrong += run(args.seed, args.seed + args.asan, checked, asan=True)
    result = {"first": args.seed, "commit": commit(), "cases": dict(counts), "asan": dict(checked), "wrong": wrong}
    result["seconds"] = round(time.perf_counter() - started)
    print(dict(counts), dict(checked))
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
