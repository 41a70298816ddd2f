"""A thousand corrupted files, and a thousand more whose digests were put right: no crash, nothing accepted in silence.

Files that were changed by accident are judged by what was saved: who accepts one must have read exactly that. Files
that were changed on purpose, digests and all, are judged by ``tests/formats/_reference.py``, a slow reader in plain
Python: what it calls broken must be refused, what it can read must come back with the same entries.
"""

from __future__ import annotations

import collections
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gossamer as gs
from tests.formats import _corrupt
from tests.formats._agree import disagreement
from tests.io.forge import join, page_of, sign, signed, split
from tests.test_malformed import same_entries, verdict

COUNT = 1_100  # some turn out to be whole
Change = Callable[[random.Random, bytes], bytes]
CHANGES: dict[str, Change] = {}


def change(function: Change) -> Change:
    CHANGES[function.__name__.replace("_", " ")] = function
    return function


@change
def bit_flip(rng: random.Random, file: bytes) -> bytes:
    out = bytearray(file)
    for _ in range(rng.choice((1, 1, 2, 8))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


@change
def bit_flip_of_data(rng: random.Random, file: bytes) -> bytes:
    out = bytearray(file)
    out[rng.randrange(8 + struct.unpack("<Q", file[:8])[0], len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


@change
def cut_off(rng: random.Random, file: bytes) -> bytes:
    return file[: rng.randrange(len(file))]


@change
def bytes_added(rng: random.Random, file: bytes) -> bytes:
    at = rng.choice((len(file), rng.randrange(len(file))))
    return file[:at] + rng.randbytes(rng.randint(1, 64)) + file[at:]


@change
def bytes_removed(rng: random.Random, file: bytes) -> bytes:
    at = rng.randrange(len(file))
    return file[:at] + file[at + rng.randint(1, 64) :]


@change
def block_zeroed(rng: random.Random, file: bytes) -> bytes:
    at, count = rng.randrange(len(file)), rng.choice((4, 16, 512))
    return file[:at] + b"\0" * len(file[at : at + count]) + file[at + count :]


@change
def blocks_swapped(rng: random.Random, file: bytes) -> bytes:
    size = rng.choice((4, 8, 64))
    a, b = sorted(rng.sample(range(len(file) // size), 2))
    out = bytearray(file)
    out[a * size : (a + 1) * size], out[b * size : (b + 1) * size] = (
        out[b * size : (b + 1) * size],
        out[a * size : (a + 1) * size],
    )
    return bytes(out)


@change
def header_length(rng: random.Random, file: bytes) -> bytes:
    (length,) = struct.unpack("<Q", file[:8])
    other = rng.choice((0, 1, length - 1, length + 1, length + 8, 2**31, 2**63, 2**64 - 1, rng.randrange(2**40)))
    return struct.pack("<Q", other) + file[8:]


WRONG = (-1, 0, 1, 7, 2**31, 2**62, 2**64, True, None, "", "x", [], {}, 1.5, [1, [2]], "CSR()", "CSC()")


def _edit(rng: random.Random, tree: Any) -> Any:
    """Change one thing in a tree of JSON: a value, a key, an item left out or doubled."""
    if not isinstance(tree, (dict, list)) or not tree or rng.random() < 0.1:
        near = [tree + 1, tree - 1, tree * 2] if type(tree) is int else []
        return rng.choice([*near, *(w for w in WRONG if w != tree)])
    if isinstance(tree, list):
        i, kind = rng.randrange(len(tree)), rng.random()
        if kind < 0.15:
            return tree[:i] + tree[i + 1 :]
        if kind < 0.3:
            return [*tree, tree[i]]
        if kind < 0.4:
            return tree[::-1]
        return [_edit(rng, x) if j == i else x for j, x in enumerate(tree)]
    key, kind = rng.choice(list(tree)), rng.random()
    if kind < 0.15:
        return {k: v for k, v in tree.items() if k != key}
    if kind < 0.3:
        return {(key + "x" if k == key else k): v for k, v in tree.items()}
    if kind < 0.4 and len(tree) > 1:
        other = rng.choice([k for k in tree if k != key])
        return {**tree, key: tree[other], other: tree[key]}
    return {**tree, key: _edit(rng, tree[key])}


@change
def header_edited(rng: random.Random, file: bytes) -> bytes:
    header, data = split(file)
    entries = {k: v for k, v in header.items() if k != "__metadata__"}
    changed = _edit(rng, entries)
    if not isinstance(changed, dict):
        return join(changed, data)
    return join({"__metadata__": header["__metadata__"], **changed}, data)


@change
def metadata_edited(rng: random.Random, file: bytes) -> bytes:
    header, data = split(file)
    page = _edit(rng, page_of(header))
    return join({**header, "__metadata__": {**header["__metadata__"], "gossamer": json.dumps(page)}}, data)


def whole_file(rng: random.Random, path: Path) -> dict[str, torch.Tensor]:
    dtype = rng.choice((torch.float32, torch.float64, torch.bfloat16, torch.float16))
    dense = (torch.rand(9, 14) * (torch.rand(9, 14) < 0.3)).to(dtype)
    formats = (gs.CSR(), gs.Masked(), gs.COO(), gs.BSR((2, 2)), gs.ELL(), gs.formats.PackedCSR(), gs.CSF())
    state = {
        "layer.weight": gs.from_dense(dense, rng.choice(formats)),
        "layer.bias": torch.rand(9).to(dtype),
        "steps": torch.tensor(7),
        "mask": torch.rand(5) < 0.5,
    }
    gs.save(state, path)
    return state


def read_all(path: Path) -> dict[str, torch.Tensor]:
    with gs.io.File(path) as file:
        return {name: file[name] for name in file}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """The same names, kinds and bits."""

    def bits(t: torch.Tensor) -> Any:
        if isinstance(t, gs.SparseTensor):
            return (str(t.format), tuple(t.shape), bits(t._values), {k: bits(x) for k, x in t.structure.arrays.items()})
        raw = t.contiguous().view(-1).view(torch.uint8)
        return (t.dtype, tuple(t.shape), raw.tolist())

    return list(a) == list(b) and all(bits(a[n]) == bits(b[n]) for n in a)


@pytest.mark.parametrize("name", CHANGES)
def test_corrupted_by_accident(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    path = tmp_path / "model.safetensors"
    outcomes: collections.Counter[str] = collections.Counter()
    for i in range(-(-COUNT // len(CHANGES))):
        if i % 5 == 0:
            state = whole_file(rng, path)
            before = path.read_bytes()
        after = CHANGES[name](rng, before)
        if after == before:
            continue
        path.write_bytes(after)
        try:
            assert same(read_all(path), state), "accepted, and it is not what was saved"
            outcomes["accepted: another way to write the same"] += 1
        except gs.io.BadFile as error:
            assert str(error).startswith(f"{path}: ") and len(str(error)) > len(str(path)) + 10
            outcomes["refused"] += 1
    assert outcomes["refused"] > 0.8 * outcomes.total() > 60, outcomes


@pytest.mark.parametrize("format", _corrupt.SPECS)
def test_corrupted_on_purpose(format: str, tmp_path: Path) -> None:
    """Arrays broken in every way of tests/formats, digests put right."""
    rng = random.Random(format)
    path = tmp_path / "model.safetensors"
    outcomes: collections.Counter[str] = collections.Counter()
    kinds = list(_corrupt.KINDS)
    for i in range(-(-COUNT // len(_corrupt.SPECS)) * 2):
        case = _corrupt.KINDS[kinds[i % len(kinds)]](rng, _corrupt.whole(rng, format))
        if case is None or not _writable(case):
            continue
        word, why = verdict(case)
        path.write_bytes(signed("w", repr(case.spec.format), case.shape, {"values": case.values, **case.arrays}))
        try:
            tensor = read_all(path)["w"]
        except gs.io.BadFile as error:
            assert word != "whole", f"refused, but it is whole: {error}"
            outcomes["refused"] += 1
        else:
            assert word != "broken", f"accepted, but {why}"
            assert word == "unknown" or same_entries(tensor, why, case.spec)
            outcomes["accepted"] += 1
    assert outcomes["refused"] >= 20, outcomes


def _writable(case: Any) -> bool:
    """Can a file hold it at all? (Tensors of other kinds can't be named in one.)"""
    arrays = [case.values, *case.arrays.values()] if isinstance(case.arrays, dict) else [None]
    plain = all(type(a) is torch.Tensor and a.layout == torch.strided and a.device.type == "cpu" for a in arrays)
    plain = plain and all(a.numel() * a.element_size() <= a.untyped_storage().nbytes() for a in arrays)
    integers = isinstance(case.shape, (tuple, list)) and all(type(s) is int and abs(s) < 2**99 for s in case.shape)
    return plain and integers and all(a.dtype in gs.io.container.NAMES for a in arrays)


def small_file(path: Path) -> tuple[bytes, dict[str, torch.Tensor]]:
    state = {"w": gs.from_dense(torch.tensor([[0.0, 3.0], [4.0, 0.0]]), gs.CSR()), "b": torch.tensor([1.0, 2.0])}
    gs.save(state, path)
    return path.read_bytes(), state


def test_every_byte_changed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    before, state = small_file(path)
    refused = 0
    for i in range(len(before)):
        path.write_bytes(before[:i] + bytes([before[i] ^ (1 << i % 8)]) + before[i + 1 :])
        try:
            assert same(read_all(path), state), f"byte {i}: accepted, and it is not what was saved"
        except gs.io.BadFile:
            refused += 1
    assert refused > 0.9 * len(before)  # blanks of the header may be others


def test_every_length(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    before, _ = small_file(path)
    for length in range(len(before)):
        path.write_bytes(before[:length])
        with pytest.raises(gs.io.BadFile):
            read_all(path)


def test_two_hundred_forged_headers(tmp_path: Path) -> None:
    """Headers and metadata edited at random, with digests that agree: refused, or a tensor that reads as it says."""
    path, rng = tmp_path / "model.safetensors", random.Random(0)
    before, _ = small_file(path)
    header, data = split(before)
    refused = 0
    for i in range(200):
        entries = {k: v for k, v in header.items() if k != "__metadata__"}
        page = page_of(header)
        changed = (_edit(rng, entries), page) if i % 2 else (entries, _edit(rng, page))
        try:
            path.write_bytes(sign({"__metadata__": {}, **changed[0]}, changed[1], data))
        except (TypeError, ValueError, KeyError, AttributeError):
            continue  # no digest can be made of it
        try:
            for tensor in read_all(path).values():
                assert not isinstance(tensor, gs.SparseTensor) or not disagreement(tensor)
        except gs.io.BadFile:
            refused += 1
    assert refused > 30
