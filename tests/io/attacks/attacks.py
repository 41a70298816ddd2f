"""One function an attack: it returns the bytes of a file. What each tries, and the answer, is in README.md."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from typing import Any

import torch

import gossamer as gs
from tests.io.forge import join, page_of, raw, sign, signed, split

ATTACKS: dict[str, Callable[[bytes], bytes]] = {}


def attack(function: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Each takes the bytes of a whole file: w, 4 x 4 in CSR, the identity; b, its dense bias."""
    ATTACKS[function.__name__] = function
    return function


def entry(**changes: Any) -> bytes:
    """A file of one tensor of four bytes, its entry changed."""
    given = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}
    return raw(json.dumps({"a": given}).encode(), b"\0" * 4)


def arrays(**changes: Any) -> bytes:
    """The identity in CSR with other arrays, and digests that agree."""
    eye = gs.from_dense(torch.eye(4), gs.CSR())
    made = {"values": eye._values, **eye.structure.arrays}
    return signed(
        "w", "CSR()", (4, 4), {**made, **{k: torch.tensor(v, dtype=made[k].dtype) for k, v in changes.items()}}
    )


def packed(part: str, at: int, value: int) -> bytes:
    tensor = gs.from_dense(torch.eye(16), gs.formats.PackedCSR())
    made = {k: a.clone() for k, a in {"values": tensor._values, **tensor.structure.arrays}.items()}
    made[part][at] = value
    return signed("w", "PackedCSR()", (16, 16), made)


def record(**changes: Any) -> bytes:
    """The identity in CSR, its record changed, and digests that agree."""
    header, data = split(arrays())
    page = page_of(header)
    page["tensors"]["w"].update(changes)
    return sign(header, page, data)


def page(**changes: Any) -> Callable[[bytes], bytes]:
    def make(file: bytes) -> bytes:
        header, data = split(file)
        return sign(header, {**page_of(header), **changes}, data)

    return make


@attack
def empty(file: bytes) -> bytes:
    return b""


@attack
def short(file: bytes) -> bytes:
    return file[:7]


@attack
def header_of_exabytes(file: bytes) -> bytes:
    return raw(b"{}", length=2**63)


@attack
def header_past_the_end(file: bytes) -> bytes:
    return raw(b"{}", length=3)


class _Touch:
    def __reduce__(self) -> Any:
        return (open, ("pwned", "w"))


@attack
def pickle_(file: bytes) -> bytes:
    return pickle.dumps(_Touch())


@attack
def not_json(file: bytes) -> bytes:
    return raw(b"{'a': 1}")


@attack
def not_utf8(file: bytes) -> bytes:
    return raw(b'{"\xff\xfe": 1}')


@attack
def json_list(file: bytes) -> bytes:
    return raw(b"[]")


@attack
def nested(file: bytes) -> bytes:
    return raw(b'{"a":' + b"[" * 1_000_000)


@attack
def long_number(file: bytes) -> bytes:
    return raw(b'{"a":{"dtype":"F32","data_offsets":[0,4],"shape":[' + b"1" * 1_000_000 + b"]}}", b"\0" * 4)


@attack
def not_a_number(file: bytes) -> bytes:
    return raw(b'{"a":{"dtype":"F32","data_offsets":[0,4],"shape":[NaN]}}', b"\0" * 4)


@attack
def name_twice(file: bytes) -> bytes:
    one = b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    return raw(b"{" + one + b"," + one + b"}", b"\0" * 4)


@attack
def metadata_of_numbers(file: bytes) -> bytes:
    return raw(b'{"__metadata__":{"gossamer":1}}')


@attack
def unknown_dtype(file: bytes) -> bytes:
    return entry(dtype="F128")


@attack
def more_keys(file: bytes) -> bytes:
    return entry(stride=[1])


@attack
def negative_size(file: bytes) -> bytes:
    return entry(shape=[-1])


@attack
def size_true(file: bytes) -> bytes:
    return entry(shape=[True])


@attack
def shape_overflow(file: bytes) -> bytes:
    return entry(shape=[2**32, 2**32, 0], data_offsets=[0, 0])


@attack
def shape_larger_than_data(file: bytes) -> bytes:
    return entry(shape=[1_000_000_000])


@attack
def reversed_offsets(file: bytes) -> bytes:
    return entry(data_offsets=[4, 0])


def _two(first: list[int], second: list[int], data: bytes) -> bytes:
    one = {"dtype": "F32", "shape": [1]}
    return join({"a": {**one, "data_offsets": first}, "b": {**one, "data_offsets": second}}, data)


@attack
def overlap(file: bytes) -> bytes:
    return _two([0, 4], [2, 6], b"\0" * 6)


@attack
def hole(file: bytes) -> bytes:
    return _two([0, 4], [8, 12], b"\0" * 12)


@attack
def past_the_end(file: bytes) -> bytes:
    return _two([0, 4], [4, 8], b"\0" * 6)


@attack
def tail(file: bytes) -> bytes:
    return file + file


@attack
def no_metadata(file: bytes) -> bytes:
    return entry()


@attack
def no_digests(file: bytes) -> bytes:
    header, data = split(file)
    made = page_of(header)
    del made["sha256"]
    header["__metadata__"]["gossamer"] = json.dumps(made)
    return join(header, data)


ATTACKS["other_version"] = page(version=3)


@attack
def metadata_twice(file: bytes) -> bytes:
    header, data = split(file)
    text = header["__metadata__"]["gossamer"]
    header["__metadata__"]["gossamer"] = text.replace('"format":"CSR()"', '"format":"CSR()","format":"CSC()"')
    return join(header, data)


@attack
def flipped_value(file: bytes) -> bytes:
    header, _ = split(file)
    (length,) = struct.unpack("<Q", file[:8])
    at = 8 + length + header["w:values"]["data_offsets"][0]
    return file[:at] + bytes([file[at] ^ 1]) + file[at + 1 :]


@attack
def renamed(file: bytes) -> bytes:
    header, data = split(file)
    return join({("c" if name == "b" else name): given for name, given in header.items()}, data)


@attack
def two_truths(file: bytes) -> bytes:
    header, data = split(signed("w", "Masked()", (2,), {"values": torch.ones(2), "mask0": torch.ones(2).bool()}))
    begin = header["w:mask0"]["data_offsets"][0]
    return sign(header, page_of(header), data[:begin] + b"\2" + data[begin + 1 :])


ATTACKS["column_out_of_range"] = lambda file: arrays(crd1=[0, 1, 2, 2_000_000_000])
ATTACKS["negative_column"] = lambda file: arrays(crd1=[0, 1, 2, -1])
ATTACKS["pos_backwards"] = lambda file: arrays(pos1=[0, 3, 2, 3, 4])
ATTACKS["pos_past_the_end"] = lambda file: arrays(pos1=[0, 1, 2, 3, 1000])
ATTACKS["too_few_values"] = lambda file: arrays(values=[1.0])
ATTACKS["packed_column"] = lambda file: packed("crd3", 0, 200)
ATTACKS["packed_row"] = lambda file: packed("crd2", 0, 1)
ATTACKS["value_in_padding"] = lambda file: signed(
    "w", "ELL()", (1, 4), {"values": torch.ones(2), "crd1": torch.tensor([[0, -1]], dtype=torch.int32)}
)
ATTACKS["code_as_format"] = lambda file: record(format="__import__('os').system('touch pwned')")
ATTACKS["nested_format"] = lambda file: record(format="CSR(" + "(" * 900 + ")" * 90)
ATTACKS["endless_format"] = lambda file: record(format="CSR(" * 250_000)
ATTACKS["huge_block"] = lambda file: signed(
    "w",
    "BSR((1000000000, 1000000000))",
    (4, 4),
    {"values": torch.ones(1, 1, 1), "pos1": torch.tensor([0, 1]), "crd1": torch.tensor([0])},
)
ATTACKS["dense_record"] = lambda file: record(format="Dense()")


@attack
def stolen_part(file: bytes) -> bytes:
    header, data = split(arrays())
    made = page_of(header)
    record = made["tensors"]["w"]
    both = {"w": record, "w:values": {**record, "parts": ["values"]}}
    return sign(header, {**made, "tensors": both, "names": ["w", "w:values"]}, data)


@attack
def missing_part(file: bytes) -> bytes:
    eye = gs.from_dense(torch.eye(4), gs.CSR())
    return signed("w", "CSR()", (4, 4), {"values": eye._values, "crd1": eye.structure.arrays["crd1"]})


ATTACKS["tied_to_nothing"] = page(tied={"c": "nobody"})
ATTACKS["tied_to_itself"] = page(tied={"w": "w"})
ATTACKS["names_left_out"] = page(names=["w"])
ATTACKS["pickle"] = ATTACKS.pop("pickle_")
