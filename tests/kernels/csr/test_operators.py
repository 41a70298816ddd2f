"""spmm, sddmm and transposes of compressed rows, by hand and against dense products."""

import pytest
import torch

import gossamer as gs
from gossamer.kernels.csr.operators import sddmm, spmm, transpose_of

# [[0, 2, 0], [3, 0, 4]]
POS, CRD, VALUES = torch.tensor([0, 1, 3]), torch.tensor([1, 0, 2]), torch.tensor([2.0, 3.0, 4.0])
A = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
X = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])


def test_products_by_hand():
    assert spmm(POS, CRD, VALUES, 2, 3, False, X, False).tolist() == [[4.0, 40.0], [15.0, 150.0]]
    assert spmm(POS, CRD, VALUES, 2, 3, False, X, True).tolist() == [[4.0, 15.0], [40.0, 150.0]]
    y = torch.tensor([[1.0], [2.0]])
    assert spmm(POS, CRD, VALUES, 2, 3, True, y, False).tolist() == [[6.0], [2.0], [8.0]]
    assert spmm(POS, CRD, VALUES, 2, 3, False, X, True).is_contiguous()


def test_samples_by_hand():
    left, right = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert sddmm(POS, CRD, 2, 3, left, right).tolist() == [2.0, 3.0, 7.0]  # (0, 1), (1, 0), (1, 2)


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_every_type(dtype, index):
    pos, crd = POS.to(index), CRD.to(index)
    out = spmm(pos, crd, VALUES.to(dtype), 2, 3, False, X.to(dtype), False)
    assert out.dtype is dtype and out.tolist() == [[4, 40], [15, 150]]
    out = spmm(pos, crd, VALUES.to(dtype), 2, 3, True, torch.ones(2, 1).to(dtype), True)
    assert out.tolist() == [[3, 2, 4]]
    sampled = sddmm(pos, crd, 2, 3, torch.ones(2, 2).to(dtype), X.to(dtype))
    assert sampled.dtype is dtype and sampled.tolist() == [22, 11, 33]


def test_nothing_stored_no_rows_no_tokens():
    none = torch.tensor([], dtype=torch.long)
    empty = (torch.tensor([0, 0, 0]), none, torch.ones(0))
    assert spmm(*empty, 2, 3, False, X, True).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert spmm(*empty, 2, 3, True, torch.ones(2, 4), False).shape == (3, 4)
    assert spmm(POS, CRD, VALUES, 2, 3, False, torch.ones(3, 0), True).shape == (0, 2)
    assert spmm(torch.tensor([0]), none, torch.ones(0), 0, 3, False, X, False).shape == (0, 2)
    assert sddmm(*empty[:2], 2, 3, torch.ones(2, 2), torch.ones(3, 2)).shape == (0,)
    assert sddmm(POS, CRD, 2, 3, torch.ones(2, 0), torch.ones(3, 0)).tolist() == [0.0, 0.0, 0.0]


def test_entries_beyond_a_full_matrix_may_be_sampled():
    pos, crd = torch.tensor([0, 3]), torch.tensor([0, 1, 1])  # padding on top of both columns
    assert sddmm(pos, crd, 1, 2, torch.tensor([[2.0]]), torch.tensor([[3.0], [5.0]])).tolist() == [6.0, 10.0, 10.0]


@pytest.mark.parametrize("size", [(3, 4), (120, 100)], ids=["by torch", "compiled"])
def test_transposes(size):
    dense = torch.randn(size) * (torch.rand(size) < 0.7)
    t = gs.from_dense(dense, gs.CSR())
    pos, crd = t.structure.arrays["pos1"], t.structure.arrays["crd1"]
    pos_t, crd_t, order = transpose_of(pos, crd, *size)
    want = gs.from_dense(dense.t().contiguous(), gs.CSR())
    assert pos_t.tolist() == want.structure.arrays["pos1"].tolist() and pos_t.dtype is pos.dtype
    assert crd_t.tolist() == want.structure.arrays["crd1"].tolist() and crd_t.dtype is crd.dtype
    assert torch.equal(t.values()[order.long()], want.values())
    assert transpose_of(pos, crd, *size)[0] is pos_t  # made once


def test_tensors_that_share_columns_have_transposes_of_their_own():
    crd, values = torch.tensor([0, 1]), torch.tensor([2.0, 3.0])

    def product(pos, shape):
        t = gs.SparseTensor.from_arrays(gs.CSR(), shape, values, {"pos1": torch.tensor(pos), "crd1": crd})
        return (torch.tensor([[1.0, 10.0]]) @ t).tolist()

    assert product([0, 1, 2], (2, 3)) == [[2.0, 30.0, 0.0]]
    assert product([0, 0, 2], (2, 3)) == [[20.0, 30.0, 0.0]]  # other rows
    assert product([0, 0, 2], (2, 5)) == [[20.0, 30.0, 0.0, 0.0, 0.0]]  # more columns
    assert product([0, 1, 2], (2, 3)) == [[2.0, 30.0, 0.0]]


def test_torch_s_rules_for_operators():
    values, x = VALUES.clone().requires_grad_(), X.clone().requires_grad_()
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    spmm, sddmm = torch.ops.gossamer.spmm, torch.ops.gossamer.sddmm
    for transposed, tokens_first, y in ((False, False, x), (True, True, torch.ones(2, 2, requires_grad=True))):
        torch.library.opcheck(spmm, (POS, CRD, values, 2, 3, transposed, y, tokens_first), test_utils=tests)
    left = torch.ones(2, 2, requires_grad=True)
    torch.library.opcheck(sddmm, (POS, CRD, 2, 3, left, x), test_utils=tests)
