"""The container: safetensors, read and written one tensor at a time, and checked when it is read.

A file is eight bytes with the length of the header, the header (JSON: the dtype, shape and place of each tensor), and
the bytes of the tensors, without gaps. The header is checked before a tensor is read; no length in it can cause more
memory to be allocated than the file has bytes.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

#: The longest header that is read: what safetensors itself allows.
MAX_HEADER = 100_000_000
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04", b"\x80\x05")  # how files of torch.save begin
_MOST = 2**63 - 1
_MOST_DIMS = 64

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class BadFile(ValueError):  # noqa: N818 - what is bad is the file, and the message says how
    """A file that can't be loaded: truncated, changed, or not in the format that it claims.

    Examples
    --------
    >>> import pathlib, gossamer as gs
    >>> _ = pathlib.Path("bad.safetensors").write_bytes(b"not a model")
    >>> gs.io.inspect("bad.safetensors")
    Traceback (most recent call last):
        ...
    gossamer.io.container.BadFile: bad.safetensors: not a safetensors file, or cut off: the header claims to be ...
    """


@dataclass(frozen=True)
class Entry:
    """One tensor of a file, as its header describes it."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def bytes(self) -> int:
        """Bytes of its values."""
        return self.end - self.begin

    def as_dict(self) -> dict[str, Any]:
        """Return it in the form of the header."""
        return {"dtype": self.dtype, "shape": list(self.shape), "data_offsets": [self.begin, self.end]}


@dataclass(frozen=True)
class Header:
    """The contents of a file, as its header describes them."""

    entries: dict[str, Entry]
    metadata: dict[str, str]
    start: int  # of the first tensor's bytes

    def encode(self) -> bytes:
        """Return the header as bytes, after its length, padded so that tensors start at a multiple of 8."""
        page = {"__metadata__": self.metadata, **{name: e.as_dict() for name, e in self.entries.items()}}
        text = json.dumps(page, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        if len(text) > MAX_HEADER:
            raise ValueError(f"the header would be {len(text):,} bytes long, at most {MAX_HEADER:,} are allowed")
        return struct.pack("<Q", len(text)) + text


def place(sizes: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> dict[str, Entry]:
    """Assign a place to each tensor: wide types first, so that each starts at a multiple of its element size.

    Examples
    --------
    >>> import torch
    >>> [(n, e.begin, e.end) for n, e in place({"a": (torch.uint8, (3,)), "b": (torch.float32, (2,))}).items()]
    [('b', 0, 8), ('a', 8, 11)]
    """
    at, entries = 0, {}
    for name in sorted(sizes, key=lambda n: (-sizes[n][0].itemsize, n)):
        dtype, shape = sizes[name]
        end = at + math.prod(shape) * dtype.itemsize
        entries[name] = Entry(NAMES[dtype], shape, at, end)
        at = end
    return entries


class Reader:
    """An open file whose header has been checked. Use it in a ``with`` statement."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: BinaryIO = open(self.path, "rb", buffering=0)
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self.header = self._header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def bad(self, what: str) -> BadFile:
        """Return the error that says what is wrong with this file."""
        return BadFile(f"{self.path}: {what}")

    def read(self, name: str) -> Tensor:
        """Return a tensor, in new memory."""
        entry = self.header.entries[name]
        dtype = DTYPES[entry.dtype]
        out = torch.empty(entry.bytes, dtype=torch.uint8)
        self._file.seek(self.header.start + entry.begin)
        window, done = memory(out), 0
        while done < entry.bytes:
            count = self._file.readinto(window[done:])  # type: ignore[attr-defined]
            if not count:
                raise self.bad(f"{name!r} ends after {done:,} of {entry.bytes:,} bytes: the file became shorter")
            done += count
        if dtype is torch.bool and bool((out > 1).any()):
            raise self.bad(f"{name!r} holds truth values other than 0 and 1")
        try:
            return out.view(dtype).view(entry.shape)
        except RuntimeError as error:
            raise self.bad(f"{name!r} of shape {entry.shape}: {error}") from None

    # -- the header

    def _header(self) -> Header:
        first = self._file.read(8)
        if len(first) < 8:
            raise self.bad(f"it is {len(first)} bytes long, a safetensors file has at least 8")
        (length,) = struct.unpack("<Q", first)
        if length > MAX_HEADER or length > self.size - 8:
            if first.startswith(PICKLES):
                raise self.bad("not a safetensors file but one of torch.save, which may run code when it is read")
            raise self.bad(
                f"not a safetensors file, or cut off: the header claims to be {length} bytes long, "
                f"but the file has {self.size - 8} after its first 8"
            )
        page = self._json(self._file.read(length))
        metadata = page.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise self.bad("__metadata__ must map names to strings")
        start = 8 + length
        entries = {name: self._entry(name, given) for name, given in page.items()}
        at = 0
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
            if entry.begin != at:
                raise self.bad(f"{name!r} starts at byte {entry.begin}, the tensor before it ends at {at}")
            at = entry.end
        if start + at != self.size:
            raise self.bad(f"the tensors end at byte {start + at} of {self.size}: cut off, or something was added")
        return Header(entries, metadata, start)

    def _json(self, text: bytes) -> dict[str, Any]:
        if not text.startswith(b"{"):
            raise self.bad("the header must start with '{'")
        try:
            page = read_json(text.decode("utf-8"))
        except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
            raise self.bad(f"the header can't be read: {_short(error)}") from None
        assert isinstance(page, dict)
        return page

    def _entry(self, name: str, given: Any) -> Entry:
        def refuse(what: str) -> BadFile:
            return self.bad(f"{name[:100]!r} in the header: {what}")

        if not isinstance(given, dict) or set(given) != {"dtype", "shape", "data_offsets"}:
            raise refuse("must have dtype, shape and data_offsets, and nothing else")
        dtype, shape, offsets = given["dtype"], given["shape"], given["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise refuse(f"dtype {_short(dtype)} is unknown; known are {', '.join(DTYPES)}")
        if not _numbers(shape) or len(shape) > _MOST_DIMS or math.prod(max(s, 1) for s in shape) > _MOST:
            raise refuse(f"shape {_short(shape)} must be sizes from 0, with fewer than 2**63 elements in all")
        if not _numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise refuse(f"data_offsets {_short(offsets)} must be begin and end")
        needed = math.prod(shape) * DTYPES[dtype].itemsize
        if offsets[1] - offsets[0] != needed:
            raise refuse(f"{dtype} of shape {_short(shape)} needs {needed} bytes, has {offsets[1] - offsets[0]}")
        return Entry(dtype, tuple(shape), offsets[0], offsets[1])


def memory(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, not a copy of them (without numpy, which torch can do without)."""
    count = tensor.numel() * tensor.element_size()
    if not count:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * count).from_address(tensor.data_ptr())).cast("B")


def _numbers(given: Any) -> bool:
    return isinstance(given, list) and all(type(n) is int and 0 <= n <= _MOST for n in given)


def read_json(text: str) -> Any:
    """Parse JSON; a repeated name or deep nesting is a ValueError.

    Examples
    --------
    >>> read_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> read_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
        ...
    ValueError: 'a' occurs twice
    """
    depth = 0
    for found in _MARKS.finditer(text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found.group(), 0)
        if depth > _MOST_DEEP:
            raise ValueError(f"it nests more than {_MOST_DEEP} deep")
    return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)


_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')  # texts, which may hold brackets, and brackets
_MOST_DEEP = 8  # our own headers nest 4 deep


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"{name[:100]!r} occurs twice")
        made[name] = value
    return made


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number of JSON")


def _short(value: object) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 120 else f"{text[:120]} ..."
