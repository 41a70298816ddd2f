"""gs.compile: the kernel of an expression, to look at before there is data, or to call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler import NotationError
from gossamer.compiler.language.affine import affine
from gossamer.compiler.language.notation import parse_groups
from gossamer.compiler.loops.by_hand import Loops
from gossamer.compiler.run.calls import AnyPlan
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format, as_format
from gossamer.ops.by_hand import plan_by_hand
from gossamer.ops.dense import from_dense
from gossamer.ops.einsum import einsum
from gossamer.ops.plans_of import plans_of


class Compiled:
    """An expression for given formats: what :func:`gossamer.compile` returns. Call it with tensors.

    ``loops`` and ``source`` are those of the last call; before the first, of a small example with a tenth of the
    entries: the order of loops depends on the data.
    """

    def __init__(
        self, expression: str, formats: tuple[Format, ...], out: Format | None, by_hand: Loops | None = None
    ) -> None:
        self.expression, self.formats, self.out, self.by_hand = expression, formats, out, by_hand
        self._plans: list[AnyPlan] = []

    def __repr__(self) -> str:
        out = "" if self.out is None else f", out={self.out}"
        out += "" if self.by_hand is None else f", loops={self.by_hand}"
        return f"compile({self.expression!r}, {', '.join(map(str, self.formats))}{out})"

    def __call__(self, *tensors: Tensor) -> Any:
        """Compute the expression on tensors of these formats."""
        given = tuple(t.format if isinstance(t, SparseTensor) else Dense() for t in tensors)
        if given != self.formats:
            raise TypeError(
                f"{self} was called with ({', '.join(map(str, given))}): convert with .to_format, or compile again"
            )
        self._plans = self._plans_of(tensors)
        return einsum(self.expression, *tensors, out=self.out, loops=self.by_hand)

    def _plans_of(self, tensors: Sequence[Tensor]) -> list[AnyPlan]:
        if self.by_hand is None:
            return plans_of(self.expression, tensors, self.out)
        return [plan_by_hand(self.expression, tensors, self.out, self.by_hand)]

    def _any_plans(self) -> list[AnyPlan]:
        self._plans = self._plans or self._plans_of(self._example())
        if not self._plans:
            raise ValueError(f"{self}: no operand is sparse, so torch computes it and there is no kernel to show")
        return self._plans

    def _example(self) -> list[Tensor]:
        found = affine(self.expression, len(self.formats))
        groups = parse_groups(self.expression if found is None else found.expression)
        if len(groups) != len(self.formats):
            raise NotationError(
                f"{self.expression!r} has {len(groups)} operands, but {len(self.formats)} formats are given"
            )
        made: list[Tensor] = []
        generator = torch.Generator().manual_seed(0)
        for group, format in zip(groups, self.formats, strict=True):
            names = [v for name in group for v in (("_0", "_1") if name == "..." else (name,))]
            shape = [_size(v) for v in names]
            x = torch.rand(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.1)
            for window in (w for w in (found.windows if found else ()) if w.operand == len(made)):
                x = x.select(window.dim + 1, 0)  # one dimension is read at two indices, and has no more than they reach
                long = window.stride * (_size(window.place) - 1) + window.step * (_size(window.offset) - 1) + 1
                x = torch.cat([x] * -(-long // x.shape[window.dim]), window.dim).narrow(window.dim, 0, long)
            made.append(x if isinstance(format, Dense) else from_dense(x, format))
        return made

    @property
    def loops(self) -> str:
        """The loop nest, as text."""
        return "\n\n".join(plan.kernel.loops for plan in self._any_plans())

    @property
    def source(self) -> str:
        """The C source of the kernel."""
        return "\n\n".join(plan.kernel.source for plan in self._any_plans())

    def explain(self) -> str:
        """Say what was chosen (order of loops, vectors, workspace, threads), and why."""
        return "\n".join(plan.explain() for plan in self._any_plans())


def _size(index: str) -> int:
    """The size of an index in the example."""
    return 48 + 8 * (ord(index[-1]) % 5)


def compile(expression: str, *formats: Format, out: Format | None = None, loops: Loops | None = None) -> Compiled:
    """Return the kernel of an expression for operands of these formats, to look at or to call.

    Parameters
    ----------
    expression, out, loops
        As for :func:`gossamer.einsum`.
    *formats
        One for each operand; ``gs.Dense()`` for an ordinary tensor.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> k = gs.compile("ik,kj->ij", gs.CSR(), gs.Dense())
    >>> print(k.loops)
    # C[i, j] = sum over k of A[i, k] * B[k, j]
    # A sparse(i, k), B dense(k, j); output dense(i, j)
    parallel for i in 0 .. i.size:
      in strips for j in 0 .. j.size:
        out.acc = 0
        for A1.q in A.pos1[i] .. A.pos1[i + 1]:
          k = A.crd1[A1.q]
          out.acc += A.val[A1.q] * B.val[k * B.s0 + j]
        out[i * out.s0 + j] = out.acc
    >>> k(gs.from_dense(torch.eye(2), gs.CSR()), torch.ones(2, 2))
    tensor([[1., 1.],
            [1., 1.]])
    """
    return Compiled(expression, tuple(as_format(f) for f in formats), None if out is None else as_format(out), loops)
