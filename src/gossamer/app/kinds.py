"""Short versions of long tables: layers whose names differ only in numbers are one kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gossamer.report import kinds

if TYPE_CHECKING:
    from rich.table import Table


def groups(rows: Sequence[dict[str, Any]], *same: str) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Return rows of one kind together; ``same``: what else they must share.

    Examples
    --------
    >>> rows = [{"name": "0.weight"}, {"name": "0.bias"}, {"name": "1.weight"}]
    >>> {kind: len(found) for kind, found in groups(rows).items()}
    {('*.weight',): 2, ('*.bias',): 1}
    """
    return kinds.groups(rows, lambda row: (row["name"], *(str(row[name]) for name in same)))


def by_kind(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the layers of a packed model as a table with a row for each kind and format."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("layers", overflow="fold")
    table.add_column("format")
    for column in ("number", "sparsity", "dense us", "packed us", "gain", "bytes"):
        table.add_column(column, justify="right")
    for (kind, format), same in groups(rows, "format").items():
        dense, ours = sum(r["dense_us"] for r in same), sum(r["us"] for r in same)
        sparsity = sum(r["sparsity"] for r in same) / len(same)
        share = sum(r["bytes"] for r in same) / max(sum(r["dense_bytes"] for r in same), 1)
        doubt = "" if all(r["clear"] for r in same) else " ?"
        figures = (f"{sparsity:.1%}", f"{dense:,.0f}", f"{ours:,.0f}", f"{dense / max(ours, 1e-9):.2f}x{doubt}")
        table.add_row(kind, format, str(len(same)), *figures, f"{share:.2f}x")
    return table
