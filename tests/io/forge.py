"""Files made by hand, for tests: any bytes, any header, and, where an attacker would do so, digests that agree."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import torch

from gossamer.io.container import NAMES, Entry
from gossamer.io.write import digest_of


def raw(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A file of these bytes, with the length that is asked for before them."""
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def split(file: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a whole file."""
    (length,) = struct.unpack("<Q", file[:8])
    return json.loads(file[8 : 8 + length]), file[8 + length :]


def join(header: dict[str, Any], data: bytes) -> bytes:
    return raw(json.dumps(header).encode(), data)


def page_of(header: dict[str, Any]) -> dict[str, Any]:
    """What stands under "gossamer"."""
    return json.loads(header["__metadata__"]["gossamer"])


def sign(header: dict[str, Any], page: dict[str, Any], data: bytes) -> bytes:
    """A file whose digests are those of what it holds, as someone who means harm would write it."""
    entries = {k: v for k, v in header.items() if k != "__metadata__"}
    offsets = {k: e["data_offsets"] for k, e in entries.items()}
    page = {**page, "sha256": {k: hashlib.sha256(data[b:e]).hexdigest() for k, (b, e) in offsets.items()}}
    page.pop("header", None)
    made = {k: Entry(e["dtype"], tuple(e["shape"]), *e["data_offsets"]) for k, e in entries.items()}
    page["header"] = digest_of(made, page)
    return join({"__metadata__": {"format": "pt", "gossamer": json.dumps(page)}, **entries}, data)


def signed(name: str, format: str, shape: Any, arrays: dict[str, torch.Tensor], **more: Any) -> bytes:
    """A file with one sparse tensor made of these arrays, whatever they are, and digests that agree."""
    header: dict[str, Any] = {}
    data = b""
    for part, array in sorted(arrays.items(), key=lambda item: -item[1].element_size()):
        own = bytes(array.contiguous().view(-1).view(torch.uint8).tolist()) if array.numel() else b""
        offsets = [len(data), len(data) + len(own)]
        header[f"{name}:{part}"] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
        data += own
    record = {"format": format, "shape": list(shape), "parts": list(arrays)}
    page = {"version": 1, "names": [name], "tensors": {name: record}, "tied": {}, **more}
    return sign(header, page, data)
