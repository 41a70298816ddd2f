"""Indexing and cutting: some of the entries, and the result is sparse."""

import pytest
import torch

import gossamer as gs
from gossamer.core.tensor import SparseTensor
from tests.formats_under_test import ALL
from tests.ops.against_dense import check, check_refused, sample

formats = pytest.mark.parametrize("format", ALL, ids=repr)

CALLS = {
    "row": lambda t: t[1],
    "slices": lambda t: t[1:, ::2, -3:],
    "new axis": lambda t: t[None, ..., 2],
    "list of rows": lambda t: t[[2, 0, 2]],
    "mask of rows": lambda t: t[torch.tensor([True, False, True])],
    "index_select": lambda t: t.index_select(2, torch.tensor([4, 4, 0])),
    "select": lambda t: t.select(-1, 3),
    "narrow": lambda t: t.narrow(1, 1, 2),
    "unbind": lambda t: t.unbind(1)[2],
    "split": lambda t: t.split(2, 2)[1],
    "split by sizes": lambda t: t.split([1, 4], 2)[1],
    "chunk": lambda t: t.chunk(2, 2)[1],
    "tensor_split": lambda t: t.tensor_split((1, 3), 2)[1],
    "hsplit": lambda t: t.hsplit(2)[1],
    "dsplit": lambda t: t.dsplit([1, 3])[1],
}
#: Calls that a guard refuses, and words of its reason.
REFUSED = {
    "a mask": (lambda t: t[torch.ones(3, 4, 5, dtype=torch.bool)], "single values"),
    "a matrix of indices": (lambda t: t[torch.tensor([[0, 1]])], "no vector of integers"),
    "two tensors": (lambda t: t[torch.tensor([0]), torch.tensor([1])], "neither a number"),
    "a bool": (lambda t: t[True], "neither a number"),
    "too many": (lambda t: t[0, 0, 0, 0], "too many"),
    "out of range": (lambda t: t[7], "out of range"),
    "a select out of range": (lambda t: t.select(0, 9), "out of range"),
    "narrow too far": (lambda t: t.narrow(0, 2, 5), "out of range"),
    "pieces that do not add up": (lambda t: t.split([1, 1]), "don't add up"),
    "no pieces": (lambda t: t.chunk(0), "no pieces"),
    "hsplit unequally": (lambda t: t.hsplit(3), "not be equal"),
    "tensor_split by a tensor": (lambda t: t.tensor_split(torch.tensor([1])), "no entry"),
    "vsplit of a vector": (lambda t: t[0, 0].vsplit(1), "too few dimensions"),
}


@formats
@pytest.mark.parametrize("name", CALLS)
def test_three_dimensions(format, name):
    assert isinstance(check(CALLS[name], sample((3, 4, 5), format)), SparseTensor)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_guard_refuses_is_torchs_with_the_reason(name):
    check_refused(*REFUSED[name], sample((3, 4, 5), gs.CSR()))
