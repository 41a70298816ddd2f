"""The operators of rows of blocks: their arguments, the product with the transpose, fake functions."""

import pytest
import torch

import gossamer as gs
from gossamer import native
from gossamer.kernels.blocks.operators import blocks_of, linear_t

needs_kernels = pytest.mark.skipif(not native.load(), reason="no native kernels here")


def weight(block=(2, 3), shape=(4, 6), order=None):
    dense = torch.arange(1.0, 1 + shape[0] * shape[1]).view(shape)
    dense[: block[0], block[1] :] = 0
    return dense, gs.from_dense(dense, gs.BSR(block, order=order))


def test_arguments_by_hand():
    _, w = weight()
    arrays, sizes = blocks_of(w.structure)
    assert sizes == (4, 6) and [a.tolist() for a in arrays] == [[0, 1, 3], [0, 0, 1]]
    assert all(a.dtype is torch.int32 for a in arrays)
    _, turned = weight(order=(1, 0))
    assert blocks_of(turned.structure).sizes == (6, 4)


@needs_kernels
@pytest.mark.parametrize("shape", [(4, 6), (5, 7)], ids=["whole blocks", "cut blocks"])
def test_the_product_with_the_transpose(shape):
    dense, w = weight(shape=shape)
    arrays, sizes = blocks_of(w.structure)
    grad = torch.arange(2.0 * shape[0]).view(2, shape[0])
    assert linear_t(*arrays, w._values, grad, *sizes).tolist() == (grad @ dense).tolist()  # whole numbers: exact
    assert linear_t(*arrays, w._values, grad[0], *sizes).tolist() == (grad[0] @ dense).tolist()


def test_nothing_stored_and_no_tokens():
    empty = gs.from_dense(torch.zeros(4, 6), gs.BSR((2, 3)))
    arrays, sizes = blocks_of(empty.structure)
    assert linear_t(*arrays, empty._values, torch.ones(2, 4), *sizes).tolist() == [[0.0] * 6] * 2
    _, w = weight()
    assert linear_t(*blocks_of(w.structure).arrays, w._values, torch.ones(3, 0, 4), 4, 6).shape == (3, 0, 6)


def test_fake_functions_say_the_shapes_of_results():
    _, w = weight()
    arrays, sizes = blocks_of(w.structure)
    ops = torch.ops.gossamer
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x, grad = mode.from_tensor(torch.ones(5, 1, 6)), mode.from_tensor(torch.ones(5, 1, 4))
        for name in ("blocks_linear", "blocks_forward"):
            assert getattr(ops, name)(*arrays, w._values, x, None, *sizes, 0).shape == (5, 1, 4)
        assert ops.blocks_linear_t(*arrays, w._values, grad, *sizes).shape == (5, 1, 6)
        for name in ("blocks_sample", "blocks_sample_forward"):
            assert getattr(ops, name)(*arrays, grad, x, *sizes, 2, 3).shape == (3, 2, 3)
