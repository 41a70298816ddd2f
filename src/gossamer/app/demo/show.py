"""The figures of the demo: as a table, as a section of the page, and as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from gossamer.report.page import Column, Section, tiles
from gossamer.report.page import table as page_table

SIZES = ((1, 16), (8, 64))  # sentences and tokens of each

Size = tuple[int, int]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    sparsity: float  # of the linear layers
    cosine: float
    found: float
    megabytes: float
    ms: dict[Size, float]  # by size


def words(size: Size) -> str:
    """Return a size as a reader wants it."""
    return f"{size[0]} x {size[1]} tokens"


def table(found: list[Row]) -> Table:
    """Return the table that the demo prints."""
    out = Table(title="all-MiniLM-L6-v2; milliseconds of the whole model, one thread", title_justify="left")
    out.add_column("model")
    for column in ("zeros", "cosine", "found", "MB", *(c for size in SIZES for c in (words(size), "gain"))):
        out.add_column(column, justify="right")
    base = found[0]
    for row in found:
        cells = [f"{row.sparsity:.0%}", f"{row.cosine:.3f}", f"{row.found:.0%}", f"{row.megabytes:.0f}"]
        for size in SIZES:
            cells += [f"{row.ms[size]:.1f}", f"{base.ms[size] / row.ms[size]:.1f}x"]
        out.add_row(row.name, *cells)
    out.caption = "\n".join(NOTES)
    out.caption_justify = "left"
    return out


#: What the columns mean.
NOTES = (
    "zeros: in the linear layers. cosine: of the embeddings to those of dense float32, 100 verses.",
    "found: verses whose other translation is nearest among 100. gain: over dense float32 in torch.",
    "gs.deploy makes it faster again, most of all with few tokens.",
)


def section(found: list[Row]) -> Section:
    """Return the same table for the page."""
    base = found[0]
    columns = [Column("model", kind=""), Column("zeros", "{:.0%}".format), Column("cosine", "{:.3f}".format)]
    columns += [Column("found", "{:.0%}".format), Column("MB", "{:.0f}".format)]
    for size in SIZES:
        columns += [Column(f"{words(size)}, ms", "{:.1f}".format), Column("gain", "{:.1f}x".format)]
    cells = []
    for row in found:
        speeds = [x for size in SIZES for x in (row.ms[size], base.ms[size] / row.ms[size])]
        cells.append([row.name, row.sparsity, row.cosine, row.found, row.megabytes, *speeds])
    lead = tiles(
        (f"{base.ms[size] / row.ms[size]:.1f}x", f"{row.name}, {words(size)}") for row in found[2:] for size in SIZES
    )
    text = f"The whole model, one thread, measured alternately, in this run. {' '.join(NOTES[:2])}"
    return Section("The demo", text, type(lead)(lead + page_table(columns, cells)))


def plain(found: list[Row]) -> list[dict[str, Any]]:
    """Return the rows as plain values, ready for JSON."""
    base = found[0]
    return [
        {
            "name": row.name, "sparsity": row.sparsity, "cosine": row.cosine, "found": row.found,
            "megabytes": row.megabytes, "ms": {words(size): row.ms[size] for size in SIZES},
            "gain": {words(size): base.ms[size] / row.ms[size] for size in SIZES},
        }
        for row in found
    ]  # fmt: skip
