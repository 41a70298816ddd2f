"""Sparse weights in a state dict of plain tensors, as ``save_pretrained`` writes them: every one says what it is.

``x.weight`` in CSR becomes ``x.weight:values``, ``x.weight:pos1``, ``x.weight:crd1``, and ``x.weight:format``, the
format's name as bytes: files are cut into shards and names are changed on the way, so no table of names would do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.core.tensor import SparseTensor
from gossamer.io.parts import put_together, take_apart


def flatten(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the state dict with sparse tensors taken apart, and the record of each.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> list(flatten({"w": gs.from_dense(torch.eye(2), gs.CSR())})[0])
    ['w:values', 'w:pos1', 'w:crd1', 'w:format']
    """
    flat: dict[str, Any] = {}
    records = {}
    texts: dict[int, Tensor] = {}  # by where the values are: tied weights share all parts, and are seen to be tied
    for name, tensor in state.items():
        if not isinstance(tensor, SparseTensor):
            flat[name] = tensor
            continue
        parts, records[name] = take_apart(name, tensor)
        flat |= parts
        text = torch.tensor(list(repr(tensor.format).encode()), dtype=torch.uint8)
        flat[f"{name}:format"] = texts.setdefault(tensor._values.data_ptr() or id(tensor), text)
    return flat, records


def unflatten(name: str, parts: Mapping[str, Tensor], shape: tuple[int, ...]) -> SparseTensor:
    """Return the tensor that these parts are, checked; ``shape`` is the one that the model has.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> flat, _ = flatten({"w": gs.from_dense(torch.eye(2), gs.CSR())})
    >>> unflatten("w", {key.partition(":")[2]: part for key, part in flat.items()}, (2, 2)).format
    CSR()
    """
    arrays = {part: array.clone() for part, array in parts.items()}  # of our own: a file that is mapped may change
    format = arrays.pop("format", None)
    if format is None or format.dtype != torch.uint8 or format.dim() != 1 or format.numel() > 1000:
        raise ValueError(f"{name!r}: its format must be there, as at most 1000 bytes of text")
    text = bytes(format.tolist()).decode("utf-8", "replace")
    record = {"format": text, "shape": list(shape), "parts": list(arrays)}
    return put_together(name, record, lambda key: arrays[key.removeprefix(f"{name}:")])


def sparse_names(keys: Any) -> dict[str, list[str]]:
    """Names of the sparse tensors of a flat state dict, with their parts.

    Examples
    --------
    >>> sparse_names(["b", "w:values", "w:format"])
    {'w': ['values', 'format']}
    """
    found: dict[str, list[str]] = {}
    for key in keys:
        name, _, part = key.rpartition(":")
        if name:
            found.setdefault(name, []).append(part)
    return {name: parts for name, parts in found.items() if "format" in parts}
