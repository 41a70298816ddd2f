"""The contents of a file or folder, for ``gossamer inspect`` and ``gossamer report``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.app.kinds import groups

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

LONG = 40  # tensors, from which on a table has a row for each kind
SAME = ("shape", "dtype", "format", "pattern", "tied_to")  # what tensors of one row share


def found_in(path: str) -> dict[str, Any]:
    """Return all tensors of a file, or of all shards in a folder, and totals; plain values, ready for JSON."""
    from gossamer.io.rows import inspect_all

    rows = [asdict(row) for row in inspect_all(_files(Path(path)))]
    values = [_size(row["shape"]) for row in rows]
    kept = sum((1 - row["sparsity"]) * size for row, size in zip(rows, values, strict=True) if not row["tied_to"])
    size = sum(size for row, size in zip(rows, values, strict=True) if not row["tied_to"])
    total = {
        "tensors": len(rows),
        "values": size,
        "sparsity": 1 - kept / max(size, 1),
        "bytes": sum(row["bytes"] for row in rows),
        "dense_bytes": sum(row["dense_bytes"] for row in rows),
    }
    return {"file": path, "tensors": rows, "total": total}


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{path}: no .safetensors file in this folder")
    return files


def tensors_in(path: str) -> dict[str, Tensor]:
    """Return the tensors of a file of gs.save, after checks, or of any other program."""
    from safetensors.torch import load_file

    from gossamer.io import BadFile, File
    from gossamer.io.container import Reader
    from gossamer.io.read import metadata_of

    with Reader(path) as reader:
        page = metadata_of(reader)
    if page is None:
        return load_file(path)
    if "sha256" not in page:
        raise BadFile(f"{path}: a shard of save_pretrained; load the model by from_pretrained and use gs.report(model)")
    with File(path) as file:
        return {name: file[name] for name in file if name not in file.tied}


def table(found: dict[str, Any], every: bool = False) -> Table:
    """Return what was found as a rich table: a row for each tensor, or for each kind of them if there are many."""
    from rich.table import Table

    rows = found["tensors"]
    short = len(rows) > LONG and not every
    out = Table(title=found["file"], title_justify="left")
    out.add_column("tensor", overflow="fold")  # names are complete, on two lines if they are long
    for column in ("shape", "dtype", "format", "pattern"):
        out.add_column(column)
    for column in ("number", "sparsity", "kB", "of dense") if short else ("sparsity", "kB", "of dense"):
        out.add_column(column, justify="right")
    vectors = [row for row in rows if len(row["shape"]) < 2 and row["format"] == "Dense()"] if short else []
    matrices = [row for row in rows if row not in vectors]
    for (kind, *_), same in groups(matrices, *SAME).items() if short else ((("",), [row]) for row in rows):
        row = same[0]
        shape = " x ".join(map(str, row["shape"])) or "scalar"
        name, number = (kind, [str(len(same))]) if short else (row["name"], [])
        if row["tied_to"]:
            out.add_row(name, shape, row["dtype"], f"[dim]the same as {row['tied_to']}[/]", "", *number)
            continue
        cells = (shape, row["dtype"], row["format"].removesuffix("()"), row["pattern"], *number)
        out.add_row(name, *cells, *_figures(same))
    if vectors:
        out.add_row("vectors (biases, norms)", "", "", "Dense", "", str(len(vectors)), *_figures(vectors))
    total = found["total"]
    out.add_section()
    number = [str(len(rows))] if short else []
    out.add_row("all", f"{total['values']:,} values", "", "", "", *number, *_figures([total]))
    return out


def _figures(rows: list[dict[str, Any]]) -> tuple[str, str, str]:
    stored, dense = sum(row["bytes"] for row in rows), sum(row["dense_bytes"] for row in rows)
    sparsity = sum(row["sparsity"] for row in rows) / len(rows)
    return f"{sparsity:.1%}", f"{stored / 1e3:,.1f}", f"{stored / max(dense, 1):.2f}x"


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size
