"""V:N:M of many matrices in one launch; the kernel is run on a CPU by tests/native/emulator.py."""

from itertools import combinations

import pytest
import torch

import gossamer as gs
from gossamer.kernels import choosing, shared_columns
from gossamer.kernels.choosing import Chosen
from gossamer.kernels.shared_columns import items_of
from gossamer.native.build import compiler
from tests.native import emulator

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
emulated = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setattr(shared_columns, "function", emulator.function)


def matrices(dtype, m, shapes, small=False):
    """Random matrices; ``small``: of small integers of both signs, whose sums are exact, with many equal ones."""
    out = []
    for rows, groups in shapes:
        dense = torch.randn(rows, groups * m)
        if small:
            dense = dense.mul(2).round()
            dense[dense == 0] *= -1.0
        out.append(given(dense.to(dtype)))
    return out


def given(dense):
    return Chosen(dense, torch.full_like(dense, 7.0), torch.zeros(dense.shape, dtype=torch.bool))


def choose(some, v, m):
    wrong = torch.zeros(1, dtype=torch.int32)
    shared_columns.launch(some, v, m, choosing._INFINITY[some[0].dense.dtype], wrong)
    return int(wrong)


def as_the_pattern(dense, v, m):
    scores = dense.abs()
    return gs.VNM(v, 2, m).select(scores if dense.dtype is torch.float64 else scores.float())


def check(some, v, m):
    copies = [one.dense.clone() for one in some]
    assert not choose(some, v, m)
    for one, dense in zip(some, copies, strict=True):
        assert torch.equal(one.dense, dense) and torch.equal(one.sparse, torch.where(one.mask, dense, 0))
    return zip(some, copies, strict=True)


@emulated
def test_by_hand():
    dense = torch.tensor([[9.0, -1.0, 8.0, 0.0, 0.0, 7.0], [1.0, 1.0, -6.0, 9.0, 1.0, 7.0]])
    one = given(dense)
    choose([one], "all", 6)  # columns 0, 2, 3 and 5
    assert one.sparse.tolist() == [[9, 0, 8, 0, 0, 0], [0, 0, 0, 9, 0, 7]]
    assert one.mask.int().tolist() == [[1, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 1]]


@emulated
@pytest.mark.parametrize(
    ("dtype", "v", "m"),
    [*((dtype, v, 8) for dtype in TYPES for v in ("all", 4)), (TYPES[0], 3, 5), (TYPES[0], 16, 10),
     (TYPES[3], "all", 12), (TYPES[1], 5, 13), (TYPES[0], "all", 16)],
    ids=str,
)  # fmt: skip
def test_equal_sums_are_decided_as_the_pattern_does(dtype, v, m):
    for one, dense in check(matrices(dtype, m, [(1, 1), (3, 5), (17, 3), (64, 2)], small=True), v, m):
        assert torch.equal(one.mask, as_the_pattern(dense, v, m))


@emulated
@pytest.mark.parametrize(("v", "m"), [("all", 8), (64, 8), (6, 6), ("all", 11), (32, 20), ("all", 32)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sums_are_the_largest(dtype, v, m):
    shapes = [(130, 2), (7, 1)] if m < 20 else [(37, 1)]
    for one, dense in check(matrices(dtype, m, shapes), v, m):
        masks = one.mask, as_the_pattern(dense, v, m)
        height = len(dense) if v == "all" else v
        for block in range(0, len(dense), height):
            rows = slice(block, block + height)
            kept = [
                torch.where(mask, dense, 0)[rows].abs().double().view(-1, dense.shape[1] // m, m).sum((0, 2))
                for mask in masks
            ]
            bound = 2 * height * torch.finfo(dtype).eps * kept[1]  # of a sum of `height` terms, twice
            assert ((kept[0] - kept[1]).abs() <= bound).all()
            used = one.mask[rows].view(-1, dense.shape[1] // m, m)
            assert (used.any(0).sum(1) <= 4).all() and (used.sum(2) == 2).all()


@emulated
def test_more_rows_than_fit_in_shared_memory():
    one = matrices(torch.float32, 8, [(1200, 1)])[0]
    assert one.dense.numel() * 4 > 2 * shared_columns._TILE
    ((one, dense),) = check([one], "all", 8)
    assert torch.equal(one.mask, as_the_pattern(dense, "all", 8))
    one = matrices(torch.float64, 16, [(260, 1)])[0]
    ((one, dense),) = check([one], 200, 16)
    assert torch.equal(one.mask, as_the_pattern(dense, 200, 16))


@emulated
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_infinities_are_finite_in_sums(dtype):
    dense = torch.ones(4, 8, dtype=dtype)
    dense[0, 2:7] = -torch.inf  # all sets with two of them have the same sum
    for one, before in check([given(dense)], "all", 8):
        assert one.mask[0].int().tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
        assert torch.equal(one.mask, as_the_pattern(before, "all", 8))


@emulated
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_nan_leaves_its_columns_and_sets_the_flag(dtype):
    (one,) = matrices(dtype, 8, [(6, 2)])
    one.dense[4, 9] = float("nan")
    assert choose([one], 3, 8) == 1
    assert (one.sparse[3:, 8:] == 7).all() and not one.mask[3:, 8:].any()
    assert (one.mask[:3].sum(1) == 4).all() and (one.mask[3:, :8].sum(1) == 2).all()


@emulated
def test_empty_matrices():
    check([given(torch.empty(0, 8)), given(torch.empty(3, 0)), matrices(torch.float32, 8, [(2, 1)])[0]], "all", 8)


@pytest.mark.parametrize("m", [5, 8, 13, 32])
@pytest.mark.parametrize("chunk", [4, 8])
def test_every_set_is_in_one_item(m, chunk):
    sets = []
    for item in items_of(m, chunk):
        i, j, k, first = item.to_bytes(4, "big")
        sets += [(i, j, k, column) for column in range(first, first + chunk) if k < column < m]
    assert sets == list(combinations(range(m), 4))


def test_shared_memory_is_within_what_every_gpu_has():
    assert all(shared_columns._shared_bytes(m, size) <= 48 * 1024 for m in range(5, 33) for size in (4, 8))
