"""The operators of packed rows: their arguments, which places are used, the product with the transpose."""

import pytest
import torch

import gossamer as gs
from gossamer import native
from gossamer.formats import PackedCSR, PackedNear, PackedNM
from gossamer.kernels.rows.operators import linear_t, rows_of, used

needs_kernels = pytest.mark.skipif(not native.load(), reason="no native kernels here")
FORMATS = [PackedCSR(), PackedCSR(64), PackedNear(), PackedNM(1, 8), PackedNM(2, 16)]


def weight(format, shape=(20, 40), largest=9):
    dense = gs.sparsify(torch.randint(1, largest, shape).float(), "1:8", format=gs.Dense())
    return dense, gs.from_dense(dense, format)


def test_arguments_by_hand():
    _, w = weight(PackedCSR(64))
    arrays, sizes = rows_of(w.structure)
    assert sizes[:2] == (20, 40) and sizes[3] == 64 and sizes[4:] == (0, 0)
    assert [a.dtype for a in arrays] == [torch.int32, torch.int32, torch.uint8]
    _, w = weight(PackedNM(1, 8))
    arrays, sizes = rows_of(w.structure)
    assert arrays[:2] == (None, None) and sizes[4:] == (8, 1)


@pytest.mark.parametrize("format", FORMATS, ids=repr)
def test_places_in_use_are_those_of_the_entries(format):
    _, w = weight(format)
    arrays, sizes = rows_of(w.structure)
    places = used(arrays[2], *sizes[3:])
    assert places.view(-1)[: w._values.numel()].nonzero().view(-1).tolist() == sorted(w.structure.entries()[1].tolist())


@needs_kernels
@pytest.mark.parametrize("format", FORMATS, ids=repr)
@pytest.mark.parametrize("shape", [(20, 40), (1, 8), (130, 96)], ids=str)
def test_the_product_with_the_transpose(format, shape):
    dense, w = weight(format, shape)
    arrays, sizes = rows_of(w.structure)
    grad = torch.randint(-4, 5, (3, shape[0])).float()
    for _ in range(2):  # the second time with the transpose that was kept
        assert torch.equal(linear_t(*arrays, w._values, grad, *sizes), grad @ dense)  # whole numbers: exact
    assert torch.equal(linear_t(*arrays, w._values, grad[0], *sizes), grad[0] @ dense)


@needs_kernels
def test_tensors_that_share_columns_have_transposes_of_their_own():
    dense, w = weight(PackedCSR())
    grad = torch.randint(-4, 5, (2, 20)).float()

    def back(cols, **changed):
        arrays = {**w.structure.arrays, **changed}
        arrays, sizes = rows_of(gs.SparseTensor.from_arrays(PackedCSR(), (20, cols), w._values, arrays).structure)
        return linear_t(*arrays, w._values, grad, *sizes)

    assert torch.equal(back(40), grad @ dense)
    assert torch.equal(back(44), torch.nn.functional.pad(grad @ dense, (0, 4)))  # more columns
    order = torch.arange(20).roll(1)
    row = w.structure.arrays["crd2"].clone()
    row[:20] = order[row[:20].long()].int()
    assert torch.equal(back(40, crd2=row), grad[:, order] @ dense)  # other rows
    assert torch.equal(back(40), grad @ dense)


def test_nothing_stored_and_no_tokens():
    empty = gs.from_dense(torch.zeros(16, 24), PackedCSR())
    arrays, sizes = rows_of(empty.structure)
    assert linear_t(*arrays, empty._values, torch.ones(2, 16), *sizes).tolist() == [[0.0] * 24] * 2
    _, w = weight(PackedCSR())
    arrays, sizes = rows_of(w.structure)
    assert linear_t(*arrays, w._values, torch.ones(3, 0, 20), *sizes).shape == (3, 0, 40)


@pytest.mark.parametrize("format", FORMATS, ids=repr)
def test_fake_functions_say_the_shapes_of_results(format):
    _, w = weight(format)
    arrays, sizes = rows_of(w.structure)
    ops = torch.ops.gossamer
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x, grad = mode.from_tensor(torch.ones(5, 1, 40)), mode.from_tensor(torch.ones(5, 1, 20))
        for name in ("rows_linear", "rows_forward"):
            assert getattr(ops, name)(*arrays, w._values, x, None, *sizes, 0).shape == (5, 1, 20)
        assert ops.rows_linear_t(*arrays, w._values, grad, *sizes).shape == (5, 1, 40)
        assert ops.rows_sample(*arrays, grad, x, *sizes).shape[0] >= w._values.numel()
        assert ops.rows_gather(mode.from_tensor(w._values), torch.zeros(7, dtype=torch.int32)).shape == (7,)
