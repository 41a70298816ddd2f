"""The operands of a statement as its loops walk them: as stored, in another order, or without empty rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from gossamer.compiler import Derived, Given, Statement, Strided
from gossamer.compiler.run.args import Arg
from gossamer.compiler.run.tiling import Tiling
from gossamer.compiler.run.views import View, fans_for, native, repacked, stack_for, without_empty_rows
from gossamer.formats import Format


class Operands:
    """The views of a statement's operands. ``orders`` names those that are sorted, ``filled`` those without empty rows.

    A view is None for an ordinary tensor.
    """

    def __init__(
        self, statement: Statement, args: Sequence[Arg], sizes: dict[str, int], out: str | int | Format
    ) -> None:
        self.statement, self.args, self.sizes, self.out = statement, args, dict(sizes), out
        self.tiling: Tiling | None = None
        self.orders: list[tuple[int, ...] | None] = [None] * len(args)
        self.filled: set[int] = set()
        self.views: list[View | None] = [self._view(k) for k in range(len(args))]

    def _view(self, k: int) -> View | None:
        arg = self.args[k]
        if arg.structure is None or arg.structure.plain:
            return None
        found = native(arg.structure)
        return found if found is not None else repacked(arg.structure, tuple(range(len(arg.shape))))

    def keep_whole(self) -> None:
        """A dimension may be cut into blocks only where no other sparse operand, and no sparse output, shares it."""
        shared = [v for k, a in enumerate(self.args) if self.views[k] is not None for v in a.vars]
        shared += list(self.statement.output) if isinstance(self.out, Format) else []
        for k, (arg, view) in enumerate(zip(self.args, self.views, strict=True)):
            if view is None or arg.structure is None:
                continue
            cut = view.cut and any(shared.count(v) > 1 for v in arg.vars)
            loose = any(not level.walk.ordered for level in view.levels if level.walk) and len(set(arg.vars)) < len(
                arg.vars
            )
            if cut or loose:
                self.repack(k)

    def uncut(self) -> None:
        """Take operands in blocks entry by entry, so that each index is one loop."""
        for k, view in enumerate(self.views):
            if view is not None and view.cut:
                self.repack(k)

    def loop_vars(self, k: int, view: View) -> tuple[str, ...]:
        """Loop variables of an operand's levels: its indices, with numbers where they are cut."""
        own = self.args[k].vars
        count = [d for d, _ in view.parts]
        return tuple(
            self.tiling.tile if d < 0 and self.tiling else own[d] if count.count(d) == 1 else f"{own[d]}.{n}"
            for n, (d, _) in enumerate(view.parts)
        )

    def derived(self) -> tuple[Derived, ...]:
        """Indices that are cut into blocks, as sums of loop variables, whose sizes are added to ``sizes``."""
        found = []
        for k, view in enumerate(self.views):
            if view is None or not view.cut:
                continue
            loops = self.loop_vars(k, view)
            for d, name in enumerate(self.args[k].vars):
                parts = tuple((v, w) for v, (dim, w) in zip(loops, view.parts, strict=True) if dim == d)
                if len(parts) > 1:
                    found.append(Derived(name, parts, d in view.guards))
                    self.sizes |= {v: view.sizes[loops.index(v)] for v, _ in parts}
        return tuple(found)

    def given(self, k: int, view: View | None) -> Given:
        """Describe an operand in a view to the scheduler."""
        arg = self.args[k]
        count = 1.0
        for size in arg.shape:
            count *= size
        if view is None:
            strides = arg.strides
            ones = [v for v, s in zip(arg.vars, strides, strict=True) if s == 1]
            return Given(Strided(arg.vars, max(ones, key=lambda v: self.sizes[v], default=None)), (), count)
        assert arg.structure is not None
        places = torch.Size(arg.structure.value_shape).numel()  # padding is walked too
        return Given(view.stack(self.loop_vars(k, view)), view.fans, float(places))

    def repack(self, k: int, order: tuple[int, ...] | None = None) -> None:
        """Take an operand in compressed levels, with its dimensions in this order."""
        arg = self.args[k]
        assert arg.structure is not None
        order = order or tuple(range(len(arg.shape)))
        self.orders[k], self.views[k] = order, repacked(arg.structure, order)
        self.filled.discard(k)

    def filled_view(self, k: int) -> View | None:
        """Return the view of an operand without its empty rows, if it has many."""
        structure, view = self.args[k].structure, self.views[k]
        if structure is None or view is None or self.orders[k] is not None or structure.device.type != "cpu":
            return None
        return without_empty_rows(structure)

    def other_orders(self, k: int, view: View) -> list[tuple[int, ...]]:
        """Orders of an operand's dimensions that it may be sorted by."""
        now = tuple(d for d, _ in view.parts)
        n = len(now)
        every = itertools.permutations(range(n)) if n <= 3 else [tuple(range(n)), tuple(reversed(range(n)))]
        return [order for order in every if order != now]

    def turned(self, k: int, order: tuple[int, ...]) -> Given:
        """Describe an operand as it would be after sorting."""
        arg = self.args[k]
        assert arg.structure is not None
        nnz = arg.structure.nnz
        like = View(
            stack_for(order, arg.shape, nnz), _NO_ARRAYS, (), tuple((d, 1) for d in order), frozenset(), (), None
        )
        return Given(like.stack(self.loop_vars(k, like)), fans_for(order, arg.shape, nnz), float(nnz))

    def along(self, k: int, last: str | None) -> bool:
        """Is an operand walked as it is stored, with its rows along this index?"""
        view = self.views[k]
        return view is not None and self.orders[k] is None and self.loop_vars(k, view)[-1:] == (last,)


class _NoArrays(dict):
    """Stands for index arrays that are not made yet: int32 by any name."""

    def __missing__(self, name: str) -> Tensor:
        return torch.empty(0, dtype=torch.int32)


_NO_ARRAYS = _NoArrays()
