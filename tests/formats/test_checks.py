"""What is checked of arrays from outside, that no level can see alone."""

import pytest
import torch

import gossamer as gs
from gossamer.formats import Structure
from gossamer.formats.checks import _distinct, check, outside

POS, CRD = torch.tensor([0, 1, 2]), torch.tensor([1, 0])
ARRAYS = {"pos1": POS, "crd1": CRD}
ONES = torch.ones(2)


def test_what_is_right_comes_back_contiguous_and_in_order():
    wide = torch.arange(8.0)[::4]
    shape, values, arrays = outside(gs.CSR(), [2, 2], wide, {"crd1": CRD, "pos1": POS})
    assert shape == (2, 2) and type(shape) is torch.Size and list(arrays) == ["pos1", "crd1"]
    assert values.is_contiguous() and values.tolist() == [0.0, 4.0]


@pytest.mark.parametrize(
    ("shape", "values", "arrays", "error", "message"),
    [
        ((2.5, 2), ONES, ARRAYS, TypeError, r"the shape must be a sequence of integers, not \(2.5, 2\)"),
        (7, ONES, ARRAYS, TypeError, "a sequence of integers, not 7"),
        ((2**63, 2), ONES, ARRAYS, ValueError, "a size that doesn't fit into 64 bits"),
        ((-1, 2), ONES, ARRAYS, ValueError, r"CSR\(\): the shape"),
        ((2, 2), ONES, [POS, CRD], TypeError, "must be a mapping from names to tensors, not .tensor"),
        ((2, 2), ONES, {"pos1": POS}, ValueError, r"the arrays are \['pos1'\], must be \['pos1', 'crd1'\]"),
        ((2, 2), [1.0], ARRAYS, TypeError, r"the tensor of values must be a torch.Tensor, not \[1.0\]"),
        ((2, 2), ONES, {"pos1": POS, "crd1": None}, TypeError, r"crd1 must be a torch.Tensor, not None"),
        ((2, 2), ONES.to_sparse(), ARRAYS, TypeError, "must be a plain dense torch.Tensor"),
        ((2, 2), ONES.to("meta"), ARRAYS, ValueError, "values is on the meta device, where there is no data"),
        ((2, 2), torch.ones(1).expand(2), ARRAYS, ValueError, "is expanded, must have memory of its own"),
    ],
)
def test_things_of_the_wrong_kind(shape, values, arrays, error, message):
    with pytest.raises(error, match=message):
        outside(gs.CSR(), shape, values, arrays)


def test_the_shape_prints_short():
    with pytest.raises(TypeError, match=r"\.\.\.$"):
        outside(gs.CSR(), ["x" * 500], ONES, ARRAYS)
    with pytest.raises(TypeError, match=r"not a object$"):
        outside(gs.CSR(), object(), ONES, ARRAYS)


def checked(format, shape, values, **arrays):
    arrays = {name: torch.as_tensor(array) for name, array in arrays.items()}
    values = torch.as_tensor(values)
    check(Structure(format, torch.Size(shape), arrays, values.device), values)


def test_whole_tensors_pass():
    checked(gs.CSR(), (2, 2), [1.0, 2.0], pos1=[0, 1, 2], crd1=[1, 0])
    checked(gs.COO(), (2, 2), [1.0, 2.0], pos0=[0, 2], crd0=[0, 1], crd1=[1, 0])
    checked(gs.ELL(), (2, 2), [1.0, 2.0, 3.0, 0.0], crd1=[[0, 1], [1, -1]])
    checked(gs.CSR(), (0, 0), torch.ones(0), pos1=[0], crd1=torch.zeros(0, dtype=torch.long))


@pytest.mark.parametrize(
    ("format", "values", "arrays", "message"),
    [
        (gs.CSR(), [1.0], {"pos1": [0, 1, 2], "crd1": [1, 0]}, r"the values are \(1,\), must be \(2,\)"),
        (
            gs.CSR(),
            [1.0, 2.0],
            {"pos1": torch.tensor([0, 1, 2]), "crd1": torch.tensor([1, 0], dtype=torch.int32)},
            "index arrays must all be int32 or all int64, not pos1 torch.int64, crd1 torch.int32",
        ),
        (gs.CSR(), [1.0, 2.0], {"pos1": [0, 1, 2], "crd1": [1, 2]}, r"CSR\(\) of shape \(2, 2\), level 1: crd has"),
        (
            gs.COO(),
            [1.0, 2.0],
            {"pos0": [0, 2], "crd0": [0, 0], "crd1": [1, 0]},
            "not in ascending order, or one occurs",
        ),
        (gs.COO(), [1.0, 2.0], {"pos0": [0, 2], "crd0": [0, 0], "crd1": [1, 1]}, "or one occurs twice"),
        (gs.ELL(), [1.0, 2.0, 3.0, 4.0], {"crd1": [[0, 1], [1, -1]]}, "a value outside the pattern is not zero"),
        (
            gs.Masked(),
            [[1.0, 2.0], [0.0, 0.0]],
            {"mask1": [True, False, True, False]},
            "a value outside the pattern is not zero",
        ),
    ],
)
def test_broken_promises(format, values, arrays, message):
    with pytest.raises(ValueError, match=message):
        checked(format, (2, 2), values, **arrays)


def test_where_a_format_has_no_order_entries_may_come_in_any_but_not_twice():
    x = torch.zeros(16, 8)
    x[0, 1], x[0, 6], x[3, 2] = 1, 2, 3
    t = gs.from_dense(x, gs.formats.PackedCSR())
    for column, whole in ((0, True), (7, True), (1, False)):  # for the second entry of row 0, beside column 1
        crd = t.structure.arrays["crd3"].clone()
        assert crd[16] == 6
        crd[16] = column
        structure = Structure(t.format, t.structure.shape, {**t.structure.arrays, "crd3": crd}, t.device)
        if whole:
            check(structure, t._values)
        else:
            with pytest.raises(ValueError, match="or one occurs twice"):
                check(structure, t._values)


@pytest.mark.parametrize("places", [4, 1000], ids=["marked", "sorted"])
def test_numbers_that_are_there_once(places):
    assert _distinct(torch.tensor([3, 0, 2]), places) and not _distinct(torch.tensor([3, 0, 3]), places)
    assert _distinct(torch.tensor([], dtype=torch.long), places)
