"""What hypothesis draws: any tensor, any format, any stack of levels."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

import gossamer as gs
from gossamer.formats.levels import Fixed

SIMPLE = ("dense", "compressed", "bitmap", "fixed")


@st.composite
def dense(draw: st.DrawFn, dims: tuple[int, int] = (0, 5)) -> torch.Tensor:
    """Any tensor: no dimension to five, sizes from 0, any density. Stored values are never zero."""
    shape = draw(st.lists(st.integers(0, 5), min_size=dims[0], max_size=dims[1]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    keep = torch.rand(shape, generator=generator) < draw(st.sampled_from((0.0, 0.1, 0.5, 1.0)))
    return torch.randint(1, 100, shape, generator=generator).double() * keep


@st.composite
def stacks(draw: st.DrawFn) -> gs.Format:
    """Any stack that can hold every tensor: a list of coordinates may stand where a compressed level does."""
    levels: list = []
    for _ in range(draw(st.integers(1, 4))):
        level = draw(st.sampled_from((*SIMPLE, "list", "wide")))
        if level == "list":
            levels += ["compressed-nonunique", *["singleton"] * draw(st.integers(0, 2))]
        else:
            levels.append(Fixed(3500) if level == "wide" and not levels else "fixed" if level == "wide" else level)
    order = draw(st.none() | st.permutations(range(len(levels))).map(tuple))
    return gs.Format(*levels, order=order)


@st.composite
def blocked(draw: st.DrawFn) -> gs.BSR:
    block = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    return gs.BSR(block, order=draw(st.sampled_from((None, (1, 0)))))


NAMED = (gs.CSR(), gs.CSC(), gs.COO(), gs.DCSR(), gs.CSF(), gs.ELL(), gs.Masked())


def formats() -> st.SearchStrategy[gs.Format]:
    return st.sampled_from(NAMED) | blocked() | stacks()


def matrix_to_dense(tensor: gs.SparseTensor) -> torch.Tensor:
    """Read the compressed-matrix view of a tensor, entry by entry."""
    view = tensor.structure.matrix()
    flat = tensor.values().reshape(-1)
    values = flat if view.index is None else flat[view.index]
    assert view.pos.dtype == view.crd.dtype and view.pos[0] == 0 and view.pos[-1] == view.crd.numel() == values.numel()
    rows, cols = (view.cols, view.rows) if view.transposed else (view.rows, view.cols)
    assert view.pos.numel() == rows + 1
    out = torch.zeros(rows, cols, dtype=values.dtype)
    for r in range(rows):
        for e in range(int(view.pos[r]), int(view.pos[r + 1])):
            out[r, view.crd[e]] += values[e]
    return out.t() if view.transposed else out
