"""Sparse tensors as plain ones: a name for each array, and a record that describes them.

``0.weight`` in CSR becomes ``0.weight:values``, ``0.weight:pos1`` and ``0.weight:crd1``, and the record
``{"format": "CSR()", "shape": [4, 8], "parts": ["values", "pos1", "crd1"]}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format, PackedNM, Structure, as_format
from gossamer.formats.packed import EarlierNM

Record = dict[str, Any]


def take_apart(name: str, tensor: SparseTensor) -> tuple[dict[str, Tensor], Record]:
    """Return the arrays of a sparse tensor by the names that they have in a file, and its record.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> parts, record = take_apart("w", gs.from_dense(torch.eye(2), gs.CSR()))
    >>> list(parts), record["format"]
    (['w:values', 'w:pos1', 'w:crd1'], 'CSR()')
    """
    arrays = {"values": tensor._values.detach(), **tensor._structure.arrays}
    record = {"format": repr(tensor.format), "shape": list(tensor._dense_shape), "parts": list(arrays)}
    return {f"{name}:{part}": array for part, array in arrays.items()}, record


def put_together(name: str, record: Any, read: Callable[[str], Tensor], *, known: bool = False) -> SparseTensor:
    """Return the tensor of a record, after checks; a ValueError or TypeError names the problem.

    ``known``: the same bytes have been checked before.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> parts, record = take_apart("w", gs.from_dense(torch.eye(2), gs.CSR()))
    >>> put_together("w", record, parts.__getitem__).format
    CSR()
    """
    check_record(name, record)
    arrays = {part: read(f"{name}:{part}") for part in record["parts"]}
    values = arrays.pop("values")
    try:
        wanted = as_format(record["format"])
        format = _stored(wanted, values, arrays)
        if known:
            tensor = SparseTensor(values, Structure(format, record["shape"], arrays, values.device))
        else:
            tensor = SparseTensor.from_arrays(format, record["shape"], values, arrays)
        return tensor if format is wanted else tensor.to_format(wanted)
    except (ValueError, TypeError, IndexError, OverflowError, RuntimeError) as error:
        raise ValueError(f"{name!r}: {error}") from None


def _stored(format: Format, values: Tensor, arrays: Mapping[str, Tensor]) -> Format:
    """The format in which arrays are: files of version 1 have a byte for each column of n:m, later ones half of one."""
    if isinstance(format, PackedNM) and format.m <= format.near and "crd3" in arrays:
        if arrays["crd3"].numel() == values.numel() > 0:
            return EarlierNM(format.n, format.m, order=format.order)
    return format


def check_record(name: str, record: Any) -> None:
    """Raise if a record is malformed; the format checks its contents."""
    if not isinstance(record, Mapping) or set(record) != {"format", "shape", "parts"}:
        raise ValueError(f"{name!r}: a sparse tensor is described by format, shape and parts, and nothing else")
    format, shape, parts = record["format"], record["shape"], record["parts"]
    if not isinstance(format, str) or len(format) > 1000:
        raise ValueError(f"{name!r}: the format must be text of at most 1000 characters")
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise ValueError(f"{name!r}: the shape must be a list of integers")
    named = isinstance(parts, list) and all(isinstance(part, str) for part in parts)
    if not named or "values" not in parts or len(set(parts)) != len(parts):
        raise ValueError(f"{name!r}: the parts must be names, each once, with 'values' among them")


def is_plain(tensor: object) -> bool:
    """Is it an ordinary tensor with data: strided, no other subclass, not quantized, not on the meta device?"""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_quantized:
        return False
    own = type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    return own and tensor.device.type != "meta" and not isinstance(tensor, torch.nn.UninitializedParameter)
