"""What a file holds, for ``gossamer inspect`` and ``gossamer report``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor


def found_in(path: str) -> dict[str, Any]:
    """Return every tensor of a file, and their sums; plain values, ready for JSON."""
    from gossamer.io import inspect

    rows = [asdict(row) for row in inspect(path)]
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


def tensors_in(path: str) -> dict[str, Tensor]:
    """Return the tensors of a file: of gs.save, checked; or of any other program."""
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


def table(found: dict[str, Any]) -> Table:
    """Return what was found as a rich table."""
    from rich.table import Table

    out = Table("tensor", "shape", "dtype", "format", "pattern", title=found["file"], title_justify="left")
    for column in ("sparsity", "kB", "of dense"):
        out.add_column(column, justify="right")
    for row in found["tensors"]:
        shape = " x ".join(map(str, row["shape"])) or "scalar"
        if row["tied_to"]:
            out.add_row(row["name"], shape, row["dtype"], f"[dim]the same as {row['tied_to']}[/]")
            continue
        share = row["bytes"] / max(row["dense_bytes"], 1)
        cells = (f"{row['sparsity']:.1%}", f"{row['bytes'] / 1e3:,.1f}", f"{share:.2f}x")
        out.add_row(row["name"], shape, row["dtype"], row["format"].removesuffix("()"), row["pattern"], *cells)
    total = found["total"]
    out.add_section()
    share = total["bytes"] / max(total["dense_bytes"], 1)
    cells = (f"{total['sparsity']:.1%}", f"{total['bytes'] / 1e3:,.1f}", f"{share:.2f}x")
    out.add_row("all", f"{total['values']:,} values", "", "", "", *cells)
    return out


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size
