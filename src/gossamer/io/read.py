"""Reading files of gs.save: a mapping that reads and checks a tensor on access."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gossamer.io.container import DTYPES, BadFile, Reader, memory, read_json
from gossamer.io.parts import check_record, put_together
from gossamer.io.write import FOLDERS, KNOWN, digest_of
from gossamer.models.quantized import PARTS

_PAGE = {"version", "names", "tensors", "tied", "sha256", "header"}


class File(Mapping[str, Tensor]):
    """A saved model as a mapping from names to tensors, read and checked one at a time. Use it in a ``with`` statement.

    Parameters
    ----------
    path
        A file of :func:`gossamer.save`.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.save({"w": gs.from_dense(torch.eye(4), gs.CSR())}, "eye.safetensors")
    >>> with gs.io.File("eye.safetensors") as file:
    ...     print(file["w"])
    SparseTensor(shape=(4, 4), format=CSR(), dtype=float32, nnz=4, density=25.0 %, bytes=52 of 64)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._reader = Reader(path)
        try:
            page = metadata_of(self._reader, (*KNOWN, *FOLDERS))
            if page is None or "sha256" not in page:
                raise self._reader.bad(
                    "it has no metadata of gs.save. A model folder of transformers is read by from_pretrained, a "
                    "compressed-tensors file by gs.io.Compressed, any other file by safetensors.torch.load_file"
                )
            if page["version"] not in KNOWN:
                raise self._reader.bad(other_version(page))
            self._check(page)
        except BaseException:
            self._reader.__exit__()
            raise
        self.records: dict[str, Any] = page["tensors"]
        #: Names that are tied to another: they are the same tensor.
        self.tied: dict[str, str] = page["tied"]
        self._digests: dict[str, str] = page["sha256"]
        self._checked: set[str] = set()  # what bytes of this SHA-256 promise need not be checked again
        self._names: list[str] = page["names"]
        self._known = {*self._names, *self.tied}

    def __enter__(self) -> File:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.__exit__()

    def __iter__(self) -> Iterator[str]:
        yield from self._names
        yield from self.tied

    def __len__(self) -> int:
        return len(self._names) + len(self.tied)

    def __contains__(self, name: object) -> bool:  # a Mapping's own would read the tensor
        return name in self._known

    def __getitem__(self, name: str) -> Tensor:
        name = self.tied.get(name, name)
        if name not in self.records:
            if name not in self._digests or name not in self._reader.header.entries:
                raise KeyError(name)
            return self._bytes(name)
        try:
            tensor = put_together(name, self.records[name], self._bytes, known=name in self._checked)
        except ValueError as error:
            raise error if isinstance(error, BadFile) else self._reader.bad(str(error)) from None
        self._checked.add(name)
        return tensor

    def digest(self, name: str) -> tuple[str, ...]:
        """Return the SHA-256 of each array of a tensor: equal for equal tensors."""
        name = self.tied.get(name, name)
        parts = [f"{name}:{part}" for part in self.records[name]["parts"]] if name in self.records else [name]
        return tuple(self._digests[part] for part in parts)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it."""
        name = self.tied.get(name, name)
        return tuple(self.records[name]["shape"] if name in self.records else self._reader.header.entries[name].shape)

    def int8_layers(self) -> list[str]:
        """Return the names of layers whose weight is sparse, in int8, with a scale beside it."""
        entries = self._reader.header.entries
        small = [n.removesuffix(".weight") for n in self.records if entries[f"{n}:values"].dtype == "I8"]
        return [name for name in small if f"{name}.scale" in self._names]

    def packed_layers(self) -> dict[str, int]:
        """Return the names of layers in eight bits, each with the number of its bytes."""
        entries = self._reader.header.entries
        found = {n.removesuffix(".packed"): entries[n] for n in self._names if n.endswith(".packed") and n in entries}
        return {name: entry.bytes for name, entry in found.items() if entry.dtype == "U8" and len(entry.shape) == 1}

    def quantized_experts(self) -> dict[str, tuple[Tensor, dict[str, tuple[torch.dtype, tuple[int, ...]]]]]:
        """Return the same of the weights of experts, whose names are before an underscore."""
        return self._quantized("_")

    def quantized_layers(self) -> dict[str, tuple[Tensor, dict[str, tuple[torch.dtype, tuple[int, ...]]]]]:
        """Return the layers with values of 8 or 4 bits: the text of each format, and types and shapes of its arrays."""
        return self._quantized(".")

    def _quantized(self, joint: str) -> dict[str, tuple[Tensor, dict[str, tuple[torch.dtype, tuple[int, ...]]]]]:
        entries, found = self._reader.header.entries, {}
        texts = (n.removesuffix("format") for n in self._names if n.endswith(f"{joint}format"))
        for name in (*texts, *([""] if joint == "." and "format" in self._names else [])):
            parts = {part: entries[name + part] for part in PARTS if name + part in entries}
            if "values" in parts and "scale" in parts:
                sizes = {part: (DTYPES[entry.dtype], tuple(entry.shape)) for part, entry in parts.items()}
                found[name.removesuffix(joint)] = self[f"{name}format"], sizes
        return found

    def bad(self, what: str) -> BadFile:
        """Return the error that says what is wrong with this file."""
        return self._reader.bad(what)

    def _bytes(self, key: str) -> Tensor:
        tensor = self._reader.read(key)
        if hashlib.sha256(memory(tensor)).hexdigest() != self._digests[key]:
            raise self._reader.bad(f"the bytes of {key!r} are not those that were saved (SHA-256 differs)")
        return tensor

    def _check(self, page: dict[str, Any]) -> None:
        """Everything that the header says together: it must be complete, and add up."""
        entries, bad = self._reader.header.entries, self._reader.bad
        if set(page) != _PAGE:
            raise bad(f"the metadata must hold {', '.join(sorted(_PAGE))}, not {', '.join(sorted(page))[:200]}")
        said = page.pop("header")
        if said != digest_of(entries, page):
            raise bad("the header is not the one that was saved (SHA-256 differs)")
        records, tied, digests = page["tensors"], page["tied"], page["sha256"]
        if not all(isinstance(table, dict) for table in (records, tied, digests)):
            raise bad("tensors, tied and sha256 of the metadata must be tables")
        parts: set[str] = set()
        for name, record in records.items():
            try:
                check_record(name, record)
            except ValueError as error:
                raise bad(str(error)) from None
            own = {f"{name}:{part}" for part in record["parts"]}
            if own - set(entries) or own & parts or name in entries:
                raise bad(f"{name!r} names arrays that are not in the file, or belong to another tensor")
            parts |= own
        whole = set(records) | (set(entries) - parts)
        if not isinstance(page["names"], list) or sorted(map(str, page["names"])) != sorted(whole):
            raise bad("the names must be those of the tensors, each once")
        if any(not isinstance(to, str) or to not in whole or name in whole for name, to in tied.items()):
            raise bad("a tied name must point to a tensor of the file, and not be one itself")
        if set(digests) != set(entries):
            raise bad("there must be one SHA-256 for each array")


def metadata_of(reader: Reader, versions: tuple[int, ...] = KNOWN) -> dict[str, Any] | None:
    """Return the "gossamer" entry of a file's metadata, or None."""
    text = reader.header.metadata.get("gossamer")
    if text is None:
        return None
    try:
        page = read_json(text)
    except ValueError as error:
        raise reader.bad(f"the metadata of gossamer can't be read: {str(error)[:200]}") from None
    if not isinstance(page, dict) or not isinstance(page.get("tensors"), dict):
        raise reader.bad("the metadata of gossamer must be a table, with a table of tensors")
    if page.get("version") not in versions:
        raise reader.bad(other_version(page))
    return page


def other_version(page: dict[str, Any]) -> str:
    """Say that a file is of a version that can't be read."""
    known = " and ".join(map(str, KNOWN))
    return (
        f"it is of version {str(page.get('version'))[:50]}; this gossamer reads versions {known}: use the one that "
        "wrote it, or a newer one"
    )
