"""Sparse tensors as plain ones with a record, and back."""

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.formats.packed import EarlierNM, PackedNM
from gossamer.io.parts import check_record, is_plain, put_together, take_apart
from tests.formats_under_test import ALL


def csr():
    return gs.from_dense(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), gs.CSR())


def test_apart_by_hand():
    parts, record = take_apart("w", csr())
    assert {name: part.tolist() for name, part in parts.items()} == {
        "w:values": [2.0, 3.0], "w:pos1": [0, 1, 2], "w:crd1": [1, 0]
    }  # fmt: skip
    assert record == {"format": "CSR()", "shape": [2, 2], "parts": ["values", "pos1", "crd1"]}
    parts, _ = take_apart("w", csr().requires_grad_())
    assert not parts["w:values"].requires_grad


@pytest.mark.parametrize("format", ALL, ids=repr)
@pytest.mark.parametrize("known", [False, True])
def test_together_again(format, known):
    t = gs.from_dense(torch.eye(4, 6).double(), format)
    parts, record = take_apart("a.b", t)
    out = put_together("a.b", record, parts.__getitem__, known=known)
    assert out.format == format and out.dtype is torch.float64 and torch.equal(out.to_dense(), t.to_dense())


def test_what_was_checked_is_not_checked_again():
    parts, record = take_apart("w", csr())
    parts["w:crd1"] = torch.tensor([7, 0], dtype=parts["w:crd1"].dtype)
    with pytest.raises(ValueError, match=r"'w': CSR\(\) of shape \(2, 2\), level 1: crd has coordinates 0 .. 7"):
        put_together("w", record, parts.__getitem__)
    assert put_together("w", record, parts.__getitem__, known=True).structure.arrays["crd1"].tolist() == [7, 0]


@pytest.mark.parametrize("known", [False, True])
def test_a_byte_for_each_column_becomes_half_of_one(known):
    x = gs.sparsify(torch.randn(16, 8), gs.NM(2, 4), format=gs.Dense())
    parts, record = take_apart("w", gs.from_dense(x, EarlierNM(2, 4)))
    record["format"] = repr(PackedNM(2, 4))
    out = put_together("w", record, parts.__getitem__, known=known)
    assert out.format == PackedNM(2, 4) and torch.equal(out.to_dense(), x)
    assert out.structure.arrays["crd3"].numel() < parts["w:crd3"].numel()


GOOD = {"format": "CSR()", "shape": [2, 2], "parts": ["values", "pos1"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 3}, "the format must be text of at most 1000 characters"),
        ({"format": "x" * 1001}, "at most 1000 characters"),
        ({"shape": (2, 2)}, "the shape must be a list of integers"),
        ({"shape": [2, True]}, "a list of integers"),
        ({"parts": ["pos1"]}, "with 'values' among them"),
        ({"parts": ["values", "values"]}, "each once"),
        ({"parts": ["values", 3]}, "must be names"),
        ({"more": 1}, "described by format, shape and parts, and nothing else"),
    ],
)
def test_records_that_are_refused(change, message):
    check_record("w", {**GOOD, "format": "x" * 1000})
    with pytest.raises(ValueError, match=f"^'w': .*{message}"):
        check_record("w", {**GOOD, **change})


def test_no_record_at_all_and_no_such_format():
    with pytest.raises(ValueError, match="'w': a sparse tensor is described by"):
        check_record("w", None)
    parts, record = take_apart("w", csr())
    with pytest.raises(ValueError, match=r"^'w': "):
        put_together("w", {**record, "format": "Nonsense()"}, parts.__getitem__)


def test_plain_tensors():
    assert is_plain(torch.ones(2)) and is_plain(nn.Parameter(torch.ones(2)))
    lazy = nn.LazyLinear(3).weight
    for other in (csr(), torch.eye(2).to_sparse(), torch.ones(2, device="meta"), lazy, [1.0], None):
        assert not is_plain(other)
