"""Loops: what the scheduler decides, given by hand. What can't be done is refused with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from gossamer.compiler.loops.schedule import Choice

WORKSPACES = ("dense", "wide", "hash")


@dataclass(frozen=True)
class Loops:
    """How the loops of one kernel are nested, cut and shared. What is None is chosen as usual.

    Parameters
    ----------
    order
        The indices from the outermost loop to the innermost: letters, or words with spaces between them. The loop over
        ``strip`` is the last one here, and is then moved outside the sums, whose results stay in registers.
    strip
        The innermost index, if its values are computed side by side in vectors; ``""``: in no index.
    tile
        Columns that a tile of a sampled product (``ij,id,jd->ij``) has, so that the rows of its second factor stay in
        the cache; 0: it is not tiled.
    workspace
        Where a row of a sparse result is summed: ``"dense"`` (values by coordinate), ``"wide"`` (with two levels of
        bits) or ``"hash"``.
    threads
        The largest number of threads.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.from_dense(torch.eye(2), gs.CSR())
    >>> gs.einsum("ik,kj->ij", a, torch.ones(2, 2), loops=gs.Loops("jik", threads=1))
    tensor([[1., 1.],
            [1., 1.]])
    """

    order: str | None = None
    strip: str | None = None
    tile: int | None = None
    workspace: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.order is not None and (not isinstance(self.order, str) or not self.order.strip()):
            raise ValueError(f"order={self.order!r} must be indices, from the outermost loop to the innermost: 'ikj'")
        if self.workspace not in (None, *WORKSPACES):
            raise ValueError(f"workspace={self.workspace!r} must be one of {', '.join(WORKSPACES)}")
        for name, least in (("tile", 0), ("threads", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ValueError(f"{name}={value!r} must be an integer from {least} on")

    def __repr__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) is not None]
        return f"gs.Loops({', '.join(f'{name}={value!r}' for name, value in given)})"

    def ordered(self, indices: Sequence[str]) -> tuple[str, ...] | None:
        """Return the order as indices, each of which must be named once; None if none was given.

        Examples
        --------
        >>> Loops("ki").ordered(("i", "k")), Loops("row col").ordered(("row", "col"))
        (('k', 'i'), ('row', 'col'))
        """
        if self.order is None:
            return None
        words = self.order.split()
        found = tuple(words if len(words) > 1 or self.order in indices else self.order.replace(" ", ""))
        if sorted(found) != sorted(indices):
            raise ValueError(f"order={self.order!r} must name each loop once, in any order: {spelled(indices)!r}")
        return found


def applied(loops: Loops, choice: Choice) -> Choice:
    """Return a choice with the strip that was given; refuse a strip or a workspace that these loops don't have.

    Examples
    --------
    >>> applied(Loops(strip=""), Choice(("i", "k", "j"), 1.0, "j", "direct")).strip is None
    True
    """
    if loops.workspace is not None and choice.method != "workspace":
        raise ValueError(
            f"{loops}: loops in the order {spelled(choice.order)!r} have no workspace here. One is needed where a row "
            f"of a sparse result is summed in several turns: a summed index is outside the result's last one"
        )
    if loops.strip == "":
        return replace(choice, strip=None)
    if loops.strip is not None and loops.strip != choice.strip:
        raise ValueError(
            f"{loops}: {loops.strip!r} can't be in strips in the order {spelled(choice.order)!r}. A strip is the "
            f"innermost index, of a dense result, along which no operand is sparse"
        )
    return choice


def spelled(indices: Sequence[str]) -> str:
    """Return indices as an order is written.

    Examples
    --------
    >>> spelled(("i", "k")), spelled(("row", "k"))
    ('ik', 'row k')
    """
    return ("" if all(len(v) == 1 for v in indices) else " ").join(indices)
