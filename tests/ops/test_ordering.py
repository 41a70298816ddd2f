"""Extremes and order along a dimension: torch's values and indices, from the stored entries."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gossamer as gs
from tests.formats_under_test import ALL
from tests.ops.against_dense import check, check_refused, dense_of, sample

formats = pytest.mark.parametrize("format", ALL, ids=repr)
ORDERED = [torch.max, torch.min, torch.sort, lambda t, dim: torch.topk(t, 2, dim)]
IDS = ["max", "min", "sort", "topk"]


def pairs(f, t, dense):
    with gs.fallback("error"):
        got, expected = f(t), f(dense)
    assert isinstance(got, type(expected))
    return list(zip(got, expected, strict=True)) if isinstance(got, tuple) else [(got, expected)]


def same(f, t, dense=None):
    for ours, theirs in pairs(f, t, t.to_dense() if dense is None else dense):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        torch.testing.assert_close(dense_of(ours), theirs, equal_nan=True, rtol=0, atol=0)


@formats
def test_by_hand(format):
    t = gs.from_dense(torch.tensor([[0.0, 3.0, 0.0], [-4.0, 0.0, -1.0], [-1.0, -2.0, -3.0]]), format)
    assert [x.tolist() for x in t.max(1)] == [[3.0, 0.0, -1.0], [1, 1, 0]]
    assert [x.tolist() for x in t.min(0)] == [[-4.0, -2.0, -3.0], [1, 2, 2]]
    assert t.argmax().item() == 1
    assert t.argmin(1, keepdim=True).tolist() == [[0], [0], [2]]
    assert [x.tolist() for x in t.topk(2)] == [[[3.0, 0.0], [0.0, -1.0], [-1.0, -2.0]], [[1, 0], [1, 2], [0, 1]]]
    values, indices = t.sort(1)
    assert dense_of(values).tolist() == [[0.0, 0.0, 3.0], [-4.0, -1.0, 0.0], [-3.0, -2.0, -1.0]]
    assert indices.tolist() == [[0, 2, 1], [0, 2, 1], [2, 1, 0]]
    assert dense_of(torch.msort(t)).tolist() == [[-4.0, -2.0, -3.0], [-1.0, 0.0, -1.0], [0.0, 3.0, 0.0]]


@formats
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("f", ORDERED, ids=IDS)
def test_values_and_gradients(format, dim, f):
    check(lambda t: f(t, dim=dim)[0], sample((4, 3, 5), format))


@given(st.integers(0, 10**9), st.sampled_from(ALL), st.sampled_from([(5, 7), (1, 6), (6, 1), (4, 3, 5), (2, 3, 2, 4)]))
def test_ties_zeros_and_nan_as_torch_has_them(seed, format, shape):
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randint(-2, 3, shape, generator=generator).double()
    dense *= torch.rand(shape, generator=generator) < 0.6
    dense = torch.where(torch.rand(shape, generator=generator) < 0.05, torch.nan, dense)
    t = gs.from_dense(dense, format)
    for dim in range(len(shape)):
        same(lambda t, d=dim: torch.max(t, d), t, dense)
        same(lambda t, d=dim: torch.min(t, dim=d, keepdim=True), t, dense)
        same(lambda t, d=dim: t.argmax(d), t, dense)
        same(lambda t, d=dim: t.argmin(d, keepdim=True), t, dense)
        same(lambda t, d=dim: torch.sort(t, dim=d, stable=True), t, dense)
        same(lambda t, d=dim: torch.sort(t, dim=d, descending=True, stable=True), t, dense)
        same(lambda t, d=dim: torch.argsort(t, dim=d, stable=True), t, dense)
        for k, largest in ((1, True), (shape[dim], False)):  # torch's topk names any of equal values
            (values, expected), (indices, _) = pairs(lambda t, d=dim, k=k, la=largest: t.topk(k, d, la), t, dense)
            torch.testing.assert_close(values, expected, equal_nan=True)
            torch.testing.assert_close(dense.gather(dim, indices), expected, equal_nan=True)
    same(torch.argmax, t, dense)
    same(torch.msort, t, dense)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bfloat16, torch.float16], ids=str)
def test_types(dtype):
    t = gs.from_dense(torch.tensor([[0, 3, 1], [2, 0, 0]]).to(dtype), gs.CSR())
    same(lambda t: t.max(0), t)
    same(lambda t: t.min(1), t)
    same(lambda t: torch.sort(t, dim=0, stable=True), t)


@pytest.mark.parametrize("f", ORDERED[:2], ids=IDS[:2])
def test_two_dimensions_left_stay_sparse(f):
    t = sample((4, 3, 5), gs.CSF())
    values, indices = f(t, 0, keepdim=True)
    assert values.shape == indices.shape == (1, 3, 5)
    assert isinstance(values, gs.SparseTensor)
    assert isinstance(indices, gs.SparseTensor)
    assert isinstance(t.argmax(1), gs.SparseTensor)
    assert type(f(t[0], 0)[0]) is torch.Tensor


def test_sorted_values_stay_sparse_with_their_entries():
    t = sample((6, 9), gs.CSR())
    assert t.sort(0).values.nnz == torch.msort(t).nnz == t.nnz
    assert t.sort(0).values.format == gs.CSR()


SIDE = 100_000


def large():
    keys = torch.tensor([0, 5, SIDE - 1, 7 * SIDE + 3, SIDE * SIDE - 1])
    index = torch.stack([keys // SIDE, keys % SIDE])
    values = torch.tensor([1.0, -2.0, 4.0, -3.0, 5.0])
    return gs.from_torch(torch.sparse_coo_tensor(index, values, (SIDE, SIDE)).coalesce()).to_format(gs.CSR())


def test_a_matrix_whose_dense_copy_takes_40_gb():
    t = large()
    with gs.fallback("error"):
        assert t.max(1).values[[0, 7, SIDE - 1]].tolist() == [4.0, 0.0, 5.0]
        assert t.max(1).indices[[0, 1, 7, SIDE - 1]].tolist() == [SIDE - 1, 0, 0, SIDE - 1]
        assert t.min(0).values[[3, 5]].tolist() == [-3.0, -2.0]
        assert t.argmax() == SIDE * SIDE - 1
        assert t.topk(2, 1).values[0].tolist() == [4.0, 1.0]
        assert t.topk(2, 1, largest=False).indices[7].tolist() == [3, 0]
        assert torch.msort(t)[-1][[0, SIDE - 1]].to_dense().tolist() == [1.0, 5.0]
        with pytest.raises(RuntimeError, match=r"75 GiB.*msort"):
            t.sort()


def test_wide_results_of_three_dimensions():
    keys = torch.tensor([5, 9, SIDE * SIDE * 3 - 1])
    index = torch.stack([keys // (3 * SIDE), keys // 3 % SIDE, keys % 3])
    t = gs.from_torch(torch.sparse_coo_tensor(index, torch.tensor([1.0, 2.0, 3.0]), (SIDE, SIDE, 3)).coalesce())
    with gs.fallback("error"):
        for f in (torch.sum, torch.amax, lambda t, d: torch.max(t, d).values):
            out = f(t, 2)
            assert (out.shape, out.nnz) == ((SIDE, SIDE), 3)
            assert out.values().tolist() == [1.0, 2.0, 3.0]


#: Calls that a guard refuses, and words of its reason.
REFUSED = {
    "bools": (lambda t: torch.max(t > 0, 0), "no order"),
    "a dimension of size 0": (lambda t: torch.max(t[:0], 0), "no extreme"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_guard_refuses_is_torchs_with_the_reason(name):
    check_refused(*REFUSED[name], sample((4, 5), gs.CSR()))


def test_errors():
    t = sample((4, 5), gs.CSR())
    with pytest.raises(RuntimeError, match="k is 6, and the dimension has 5"):
        t.topk(6)
    with pytest.raises(IndexError, match="out of range"):
        t.max(2)


def test_masked_weights_are_torchs():
    assert gs.explain(torch.sort, sample((4, 5), gs.Masked())).how == "storage"


def test_a_trace_gives_torchs_result():
    t = sample((4, 5), gs.CSR())
    compiled = torch.compile(lambda t: torch.max(t, 1).values * 2, backend="eager", fullgraph=True)
    with gs.fallback("silent"):
        torch.testing.assert_close(compiled(t), t.to_dense().max(1).values * 2)
