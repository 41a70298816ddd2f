"""A saved model as a mapping: read when asked, checked then."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.io.read import File, other_version
from tests.io.forge import page_of, sign, split

W = [[0.0, 2.0], [3.0, 0.0]]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "m.safetensors"
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    with torch.no_grad():
        model["a"].weight.copy_(torch.tensor(W))
    gs.sparsify_(model, "50%", format=gs.CSR())
    gs.save(model, path)
    return path


def test_names_shapes_and_tensors_by_hand(path):
    with File(path) as file:
        assert list(file) == ["a.weight", "a.bias", "b.weight"] and len(file) == 3
        assert file["a.weight"].format == gs.CSR() and file["a.weight"].to_dense().tolist() == W
        assert file["b.weight"].to_dense().tolist() == W and file.tied == {"b.weight": "a.weight"}
        assert file.shape("b.weight") == (2, 2) and file.shape("a.bias") == (2,)


def test_equal_tensors_have_equal_digests(path):
    gs.save({"a": torch.ones(2), "b": torch.ones(2), "c": torch.zeros(2)}, path)
    with File(path) as file:
        assert file.digest("a") == file.digest("b") != file.digest("c") and len(file.digest("a")) == 1


def test_a_sparse_tensor_has_a_digest_for_each_array(path):
    with File(path) as file:
        assert len(file.digest("a.weight")) == 3 and file.digest("b.weight") == file.digest("a.weight")


def test_no_tensor_is_read_to_tell_whether_it_is_there(path, monkeypatch):
    with File(path) as file:
        monkeypatch.setattr(file._reader, "read", None)
        assert "a.weight" in file and "b.weight" in file and "a.bias" in file
        assert "a.weight:values" not in file and "nobody" not in file and 3 not in file


def test_a_name_that_is_not_there(path):
    with File(path) as file, pytest.raises(KeyError, match="nobody"):
        file["nobody"]


def test_bytes_that_have_changed_are_noticed_when_they_are_read(path):
    data = bytearray(path.read_bytes())
    with File(path) as file:
        entry = file._reader.header.entries["a.bias"]
        at = file._reader.header.start + entry.begin
    data[at] ^= 1
    path.write_bytes(data)
    with File(path) as file:
        assert file["a.weight"].nnz == 2
        with pytest.raises(gs.io.BadFile, match=r"the bytes of 'a.bias' are not those that were saved \(SHA-256"):
            file["a.bias"]


def edited(path, change):
    header, data = split(path.read_bytes())
    page = page_of(header)
    change(page)
    path.write_bytes(sign(header, page, data))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda page: page.update(more=1), "the metadata must hold header, names, sha256, tensors, tied, version, not"),
        (lambda page: page["names"].pop(), "the names must be those of the tensors, each once"),
        (lambda page: page["names"].append("a.bias"), "the names must be those of the tensors, each once"),
        (lambda page: page["tied"].update(x="nobody"), "a tied name must point to a tensor of the file"),
        (lambda page: page["tied"].update({"a.bias": "a.weight"}), "and not be one itself"),
        (lambda page: page["tensors"]["a.weight"]["parts"].append("crd7"), "'a.weight' names arrays that are not in"),
        (lambda page: page["tensors"].update(x={}), "'x': a sparse tensor is described by"),
        (lambda page: page.update(tied=[]), "tensors, tied and sha256 of the metadata must be tables"),
        (lambda page: page.update(version=4), "it is of version 4; this gossamer reads versions 1 and 2"),
        (lambda page: page.update(version=3), "it is of version 3; this gossamer reads versions 1 and 2"),
        (lambda page: page.update(tensors=3), "must be a table, with a table of tensors"),
    ],
)
def test_what_a_header_says_must_add_up(path, change, message):
    edited(path, change)
    with pytest.raises(gs.io.BadFile, match=message):
        File(path)


def test_a_header_that_was_edited_and_not_signed_is_refused(path):
    data = path.read_bytes()
    path.write_bytes(data.replace(b'a.bias\\"', b'a.bios\\"', 1))
    with pytest.raises(gs.io.BadFile, match=r"SHA-256 differs|the names must be"):
        File(path)


def test_layers_in_eight_bits(path):
    sparse = gs.from_dense(torch.tensor(W).to(torch.int8), gs.CSR())
    plain = {"one.scale": torch.ones(1), "three.packed": torch.ones(5, dtype=torch.uint8), "four.packed": torch.ones(5)}
    gs.save({"one.weight": sparse, "two.weight": sparse, **plain}, path)
    with File(path) as file:
        assert file.int8_layers() == ["one"]  # the other has no scale
        assert file.packed_layers() == {"three": 5}


def test_the_version_is_cut_short():
    assert "version None;" in other_version({}) and len(other_version({"version": "9" * 500})) < 200
