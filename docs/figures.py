"""Draw the trees of docs/explanation/levels.md: one and the same matrix in every format.

    python docs/figures.py        writes docs/explanation/figures/*.svg

The trees are read out of gossamer's own arrays, so a picture can't disagree with the code. The page takes the SVGs in
as they are: their colours are those of the page, light or dark.
"""

from __future__ import annotations

from pathlib import Path

import torch

import gossamer as gs

FIGURES = Path(__file__).parent / "explanation" / "figures"
MATRIX = torch.tensor([[5, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 0, 7, 3, 0, 0], [0, 0, 2, 0, 0, 9]]).float()
ROWS, COLUMNS = "rows", "columns"
TREES = {
    "csr": (gs.CSR(), [ROWS, COLUMNS]),
    "csc": (gs.CSC(), [COLUMNS, ROWS]),
    "coo": (gs.COO(), [ROWS, COLUMNS]),
    "dcsr": (gs.DCSR(), [ROWS, COLUMNS]),
    "bsr": (gs.BSR((2, 2)), ["block rows", "block columns", "rows inside", "columns inside"]),
    "ell": (gs.ELL(), [ROWS, COLUMNS]),
    "masked": (gs.Masked(), [ROWS, COLUMNS]),
}
STEP, HEIGHT, BOX, LEFT = 28, 48, 22, 170


class Node:
    """One position of a level."""

    def __init__(self, text: str, kind: str, children: list[Node]) -> None:
        self.text, self.kind, self.children = text, kind, children
        self.x = 0.0

    def place(self, left: float) -> float:
        """Give the node and those below it their places, from the left; return where the next may start."""
        if not self.children:
            self.x = left + STEP / 2
            return left + STEP
        right = left
        for child in self.children:
            right = child.place(right)
        self.x = (self.children[0].x + self.children[-1].x) / 2
        return right


def tree(t: gs.SparseTensor) -> list[list[Node]]:
    """Return the nodes of every level, and the values as the last one."""
    values = [f"{v:g}" for v in t.values().reshape(-1).tolist()]
    valid = t.structure.valid()
    real = [True] * len(values) if valid is None else valid.reshape(-1).tolist()
    rows = [[Node(v, "value" if r else "padding", []) for v, r in zip(values, real, strict=True)]]
    below: list[list[Node]] = [[node] for node in rows[0]]
    for level, arrays, parents, size in reversed(t.structure.levels()):
        parent, coord, there = level.unpack(arrays, parents, size, torch.device("cpu"))
        kept = [True] * len(coord) if there is None else there.tolist()
        kind = "stored" if level.arrays else "implied"
        nodes = [
            Node(str(c) if c >= 0 else "–", kind if k else "padding", children)
            for c, k, children in zip(coord.tolist(), kept, below, strict=True)
        ]
        rows.insert(0, nodes)
        below = [[n for n, p in zip(nodes, parent.tolist(), strict=True) if p == i] for i in range(parents)]
    return rows


def svg(t: gs.SparseTensor, dimensions: list[str]) -> str:
    """Draw a tensor as a tree: a row a level, the values below."""
    rows = tree(t)
    right = float(LEFT)
    for node in rows[0]:
        right = node.place(right)
    width, height = right + 10, HEIGHT * len(rows)
    label = f"{t.format} as a tree of levels"
    out = [f'<svg class="tree" viewBox="0 0 {width:g} {height}" width="{width:g}" role="img" aria-label="{label}">']
    names = [type(level).__name__.lower() for level, *_ in t.structure.levels()]
    names = ["compressed-nonunique" if n == "compressed" and isinstance(t.format, gs.COO) else n for n in names]
    for i, row in enumerate(rows):
        y = HEIGHT * i + HEIGHT // 2
        if i < len(names):
            out.append(f'<text class="level" x="0" y="{y - 2}">{names[i]}</text>')
            out.append(f'<text class="what" x="0" y="{y + 13}">{dimensions[i]}</text>')
        else:
            out.append(f'<text class="level" x="0" y="{y + 5}">values</text>')
        for node in row:
            down = (y + BOX / 2, y + HEIGHT - BOX / 2)
            out += [f'<path d="M{node.x:g} {down[0]:g}L{c.x:g} {down[1]:g}"/>' for c in node.children]
        for node in row:
            left, top = node.x - BOX / 2, y - BOX / 2
            out.append(f'<rect class="{node.kind}" x="{left:g}" y="{top:g}" width="{BOX}" height="{BOX}" rx="4"/>')
            out.append(f'<text class="{node.kind}" x="{node.x:g}" y="{y + 5}">{node.text}</text>')
    return "\n".join([*out, "</svg>"])


def arrays(t: gs.SparseTensor) -> str:
    """Write down what is stored."""
    stored = {name: a.reshape(-1) if name.startswith("mask") else a for name, a in t.structure.arrays.items()}
    lines = [f"{name:6} = {' '.join(str(int(v)) for v in a.reshape(-1))}" for name, a in stored.items()]
    return "\n".join([*lines, f"values = {' '.join(f'{v:g}' for v in t.values().reshape(-1).tolist())}"])


def main() -> None:
    """Write all figures, and print the arrays that the page shows beside them."""
    FIGURES.mkdir(exist_ok=True)
    for name, (format, dimensions) in TREES.items():
        t = gs.from_dense(MATRIX, format)
        (FIGURES / f"{name}.svg").write_text(svg(t, dimensions) + "\n", encoding="utf-8")
        (FIGURES / f"{name}.txt").write_text(arrays(t) + "\n", encoding="utf-8")
        print(f"{t!r}\n{arrays(t)}\n")


if __name__ == "__main__":
    main()
