"""inspect: the contents of a file, tensor by tensor."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gossamer.core.tensor import SparseTensor
from gossamer.formats.values import is_computed_from, share_of_zeros
from gossamer.io.container import BadFile, Reader
from gossamer.io.parts import check_record, put_together
from gossamer.io.read import File, metadata_of
from gossamer.io.write import FOLDERS, KNOWN
from gossamer.kernels.int8.layout import layout_of
from gossamer.kernels.int8.unpack import check, mask_of
from gossamer.kernels.int8.weight import HEAD, parts
from gossamer.patterns import describe

#: Bytes that the mask of any tensor may take, to see which pattern it has.
_MASK = 16 << 20


@dataclass(frozen=True)
class Saved:
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    format: str  # as it prints, such as "CSR()"; "Dense()" for a plain tensor, "int8 dense" and so on for int8 layers
    sparsity: float  # share that isn't stored; of a dense tensor, of zeros
    bytes: int
    dense_bytes: int
    tied_to: str | None = None  # the same tensor under another name, counted there
    pattern: str = ""  # of a sparse tensor, as its mask has it; not of one whose mask would be far larger than itself


def inspect(path: str | os.PathLike[str]) -> list[Saved]:
    """List the tensors of a safetensors file; every tensor is read and checked.

    Works for files of :func:`gossamer.save`, of ``save_pretrained`` (one shard at a time) and of any other program.

    Parameters
    ----------
    path
        The file.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.save(gs.sparsify_(torch.nn.Linear(8, 4), "75%", format=gs.CSR()), "small.safetensors")
    >>> for row in gs.io.inspect("small.safetensors"):
    ...     print(row.name, row.shape, row.dtype, row.format, row.sparsity, row.bytes, row.dense_bytes, row.pattern)
    weight (4, 8) float32 CSR() 0.75 84 128 unstructured
    bias (4,) float32 Dense() 0.0 16 16
    """
    return inspect_all([path])


def inspect_all(paths: Sequence[str | os.PathLike[str]]) -> list[Saved]:
    """List the tensors of several files, such as the shards of a folder, which may divide the arrays of a weight.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.save({"a": torch.ones(2)}, "a.safetensors"), gs.save({"b": torch.ones(3)}, "b.safetensors")
    (None, None)
    >>> [row.name for row in inspect_all(["a.safetensors", "b.safetensors"])]
    ['a', 'b']
    """
    rows: list[Saved] = []
    shards: dict[str, Reader] = {}
    records: dict[str, object] = {}
    joint = ":"
    with ExitStack() as opened:
        for path in paths:
            reader = opened.enter_context(Reader(path))
            page = metadata_of(reader, (*KNOWN, *FOLDERS))
            if page is not None and "sha256" in page:
                rows += _signed(path)
                continue
            shards |= dict.fromkeys(reader.header.entries, reader)
            records |= {} if page is None else page["tensors"]
            joint = "_" if page is not None and page["version"] in FOLDERS else joint
        return rows + _unsigned(shards, records, joint)


def _signed(path: str | os.PathLike[str]) -> list[Saved]:
    """Of a file of :func:`gossamer.save`."""
    with File(path) as file:
        rows = [_row(name, file[name]) for name in file if name not in file.tied]
        known = {row.name: row for row in rows}
        for name, to in file.tied.items():
            row = known[to]
            rows.append(replace(row, name=name, bytes=0, dense_bytes=0, tied_to=to))
    return rows


def _unsigned(shards: dict[str, Reader], records: dict[str, object], joint: str) -> list[Saved]:
    """Of files that others wrote: sparse tensors are checked by their formats, the rest can't be."""
    rows, seen = [], set()
    for name, record in records.items():
        reader = shards.get(f"{name}{joint}values")
        if reader is None:
            continue  # it is in another shard
        try:
            check_record(name, record)
            rows.append(_row(name, put_together(name, record, partial(_part, shards, name, joint))))
        except ValueError as error:
            raise error if isinstance(error, BadFile) else reader.bad(str(error)) from None
        except KeyError as error:
            raise reader.bad(f"{error} is not in it; if it is in another shard, inspect the folder") from None
        seen |= {f"{name}{joint}{part}" for part in ("format", *record["parts"])} | {name}  # type: ignore[index]
    rest = [_row(name, reader.read(name)) for name, reader in shards.items() if name not in seen]
    int8 = {row.name for row in rest if row.format.startswith("int8")}  # a folder has an empty tensor for each, too
    return rows + [row for row in rest if row.name not in int8 or row.bytes]


def _part(shards: dict[str, Reader], name: str, joint: str, key: str) -> Tensor:
    found = f"{name}{joint}{key.removeprefix(f'{name}:')}"
    return shards[found].read(found)


def _row(name: str, tensor: Tensor) -> Saved:
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if isinstance(tensor, SparseTensor):
        size, dense = tensor.nbytes, tensor._dense_shape.numel() * tensor._values.element_size()
        small = tensor._dense_shape.numel() <= 2 * size + _MASK  # a few entries may have a shape of any size
        pattern = describe(tensor.mask()) if small else ""
        return Saved(name, shape, dtype, repr(tensor.format), tensor.sparsity, size, dense, pattern=pattern)
    if name.endswith("packed") and is_int8(tensor):
        return _int8_row(name.removesuffix("packed") + "weight", tensor)
    size = tensor.numel() * tensor.element_size()
    zeros = 0.0 if is_computed_from(name) else share_of_zeros(tensor)
    return Saved(name, shape, dtype, "Dense()", zeros, size, size)


def is_int8(tensor: Tensor) -> bool:
    """Do these bytes begin as those of a layer of quantize_(model, "int8") do?"""
    bytes_of_it = tensor.dtype == torch.uint8 and tensor.dim() == 1 and tensor.numel() >= 128
    return bytes_of_it and int(tensor[:8].clone().view(torch.int64)) == HEAD


def _int8_row(name: str, packed: Tensor) -> Saved:
    try:
        check(packed)
    except ValueError as error:
        raise BadFile(f"{name}: {error}") from None
    sizes, mask = parts(packed).sizes, mask_of(packed)
    kept, count = int(mask.sum()), math.prod(sizes.shape)
    pattern = describe(mask) if kept < count else ""
    sparsity = 1 - kept / max(count, 1)
    layout = str(layout_of(packed))
    return Saved(name, sizes.shape, "int8", layout, sparsity, packed.numel(), 4 * count, pattern=pattern)
