"""The container: headers written and read, and what is refused before a byte of a tensor is read."""

import json
import struct

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.io.container import DTYPES, NAMES, BadFile, Entry, Header, Reader, memory, place, read_json
from tests.io.forge import raw


def test_places_by_hand_wide_types_first():
    sizes = {"a": (torch.uint8, (3,)), "c": (torch.float32, (2, 2)), "b": (torch.float32, ()), "e": (torch.int64, (0,))}
    got = {name: (e.dtype, e.shape, e.begin, e.end) for name, e in place(sizes).items()}
    assert got == {
        "e": ("I64", (0,), 0, 0), "b": ("F32", (), 0, 4), "c": ("F32", (2, 2), 4, 20), "a": ("U8", (3,), 20, 23)
    }  # fmt: skip
    assert Entry("U8", (3,), 20, 23).bytes == 3


def test_a_header_is_as_long_as_it_says_and_padded_to_8():
    entry = Entry("F32", (2,), 0, 8)
    for name in ("a", "ab", "abc", "ä", "a" * 17):
        data = Header({name: entry}, {"format": "pt"}, 0).encode()
        (length,) = struct.unpack("<Q", data[:8])
        assert len(data) == 8 + length and length % 8 == 0
        page = json.loads(data[8:])
        assert page["__metadata__"] == {"format": "pt"}
        assert page[name] == {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def test_a_header_that_is_too_long_is_not_written(monkeypatch):
    monkeypatch.setattr("gossamer.io.container.MAX_HEADER", 63)
    with pytest.raises(ValueError, match="the header would be 72 bytes long, at most 63 are allowed"):
        Header({"a": Entry("F32", (2,), 0, 8)}, {}, 0).encode()


def test_names_of_types_are_those_of_safetensors(tmp_path):
    assert NAMES[torch.bfloat16] == "BF16" and len(NAMES) == len(DTYPES)
    for name, dtype in DTYPES.items():
        file = tmp_path / name
        safetensors.torch.save_file({"t": torch.zeros(2, dtype=dtype)}, file)
        with Reader(file) as reader:
            assert reader.header.entries["t"].dtype == name and reader.read("t").dtype is dtype


@settings(max_examples=15)
@given(st.dictionaries(st.text("abcé", min_size=1, max_size=3), st.lists(st.integers(0, 3), max_size=3), max_size=4))
def test_what_is_written_is_read(tmp_path_factory, shapes):
    tensors = {name: torch.rand(shape) for name, shape in shapes.items()}
    entries = place({name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()})
    file = tmp_path_factory.mktemp("c") / "f"
    file.write_bytes(Header(entries, {"k": "v"}, 0).encode() + b"".join(bytes(memory(tensors[n])) for n in entries))
    with Reader(file) as reader:
        assert reader.header.metadata == {"k": "v"} and reader.header.entries == entries
        for name, tensor in tensors.items():
            assert torch.equal(reader.read(name), tensor)


def test_memory_is_not_a_copy():
    t = torch.tensor([1, 2], dtype=torch.int16)
    window = memory(t)
    window[0] = 9
    assert t.tolist() == [9, 2] and len(window) == 4 and len(memory(torch.ones(0))) == 0


def entry(**changes):
    return {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}}


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (entry(dtype="F33"), "'a' in the header: dtype 'F33' is unknown; known are F64"),
        (entry(shape=[-1]), r"shape \[-1\] must be sizes from 0"),
        (entry(shape=[1.0]), r"shape \[1.0\] must be sizes"),
        (entry(shape=[True]), r"shape \[True\] must be sizes"),
        (entry(shape=[2**62, 2, 0]), "with fewer than"),
        (entry(shape=[1] * 65), "must be sizes from 0"),
        (entry(shape=[2]), r"F32 of shape \[2\] needs 8 bytes, has 4"),
        (entry(data_offsets=[4, 0]), r"data_offsets \[4, 0\] must be begin and end"),
        (entry(data_offsets=[0]), "must be begin and end"),
        (entry(data_offsets=[1, 5]), "'a' starts at byte 1, the tensor before it ends at 0"),
        (entry(more=1), "must have dtype, shape and data_offsets, and nothing else"),
        ({"__metadata__": {"k": 1}, **entry()}, "__metadata__ must map names to strings"),
    ],
)
def test_headers_that_are_refused(tmp_path, page, message):
    file = tmp_path / "f"
    file.write_bytes(raw(json.dumps(page).encode(), b"\0" * 4))
    with pytest.raises(BadFile, match=message):
        Reader(file)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"1234567", "it is 7 bytes long, a safetensors file has at least 8"),
        (b"PK\x03\x04 a zip file", "not a safetensors file but one of torch.save, which may run code when it is read"),
        (raw(b"{}", length=3), "the header claims to be 3 bytes long, but the file has 2 after its first 8"),
        (raw(b"[]"), "the header must start with '{'"),
        (raw(b'{"a'), "the header can't be read"),
        (raw(b"{}", b"x"), "the tensors end at byte 10 of 11: cut off, or something was added"),
        (raw(json.dumps(entry()).encode(), b"\0" * 3), "cut off, or something was added"),
        (raw(json.dumps(entry(dtype="BOOL", data_offsets=[0, 1])).encode(), b"\2"), "truth values other than 0 and 1"),
    ],
)
def test_bytes_that_are_refused(tmp_path, data, message):
    file = tmp_path / "f"
    file.write_bytes(data)
    with pytest.raises(BadFile, match=f"{file}: .*{message}"), Reader(file) as reader:
        reader.read("a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        ("NaN", "NaN is not a number of JSON"),
        ("[" * 9 + "]" * 9, "it nests more than 8 deep"),
    ],
)
def test_json_that_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        read_json(text)


def test_json_that_is_read():
    assert read_json("[" * 8 + "]" * 8) == [[[[[[[[]]]]]]]]
    assert read_json('["[[[[[[[[[[", "\\"[[[[[[[[["]') == ["[[[[[[[[[[", '"[[[[[[[[[']  # brackets in texts don't nest
