"""To write to a sparse tensor: stored positions only, unless a pattern comes along."""

import pytest
import torch

import gossamer as gs
from gossamer.core.write import copy_, not_stored, write, write_back


def csr(rows=((0.0, 2.0), (3.0, 0.0)), format=None):
    return gs.from_dense(torch.tensor(rows), format or gs.CSR())


def test_a_result_is_written_at_the_stored_positions():
    t = csr()
    assert write(t, torch.tensor([[5.0, 6.0], [7.0, 8.0]])) is t
    assert t.values().tolist() == [6.0, 7.0] and t.nnz == 2
    write(t, csr(((1.0, 0.0), (9.0, 0.0)), gs.COO()))  # sparse: read at these positions, 0 where it has none
    assert t.values().tolist() == [0.0, 9.0]


def test_a_result_of_another_shape_brings_its_pattern():
    t = csr()
    write(t, torch.tensor([[0.0, 1.0, 2.0]]))
    assert t.shape == (1, 3) and t.nnz == 3 and t.format == gs.CSR()  # all of a dense one, zeros too
    t = csr()
    write(t, csr(((0.0, 1.0, 0.0),), gs.COO()))
    assert t.shape == (1, 3) and t.values().tolist() == [1.0] and t.format == gs.CSR()


def test_a_type_that_can_not_be_cast_is_torchs_error():
    t = gs.from_dense(torch.tensor([[0, 2]]), gs.CSR())
    with pytest.raises(RuntimeError, match="result type Float32 can't be cast to the desired output type Int64"):
        write(t, torch.ones(1, 2))
    half = csr().to(torch.float16)
    write(half, torch.full((2, 2), 4.0, dtype=torch.float64))  # of the same kind: rounded
    assert half.dtype is torch.float16 and half.values().tolist() == [4.0, 4.0]


def test_the_gradient_goes_to_what_was_written():
    t, x = csr(), torch.ones(2, 2, requires_grad=True)
    write(t, x * 2).to_dense().mul(torch.tensor([[1.0, 10.0], [100.0, 1000.0]])).sum().backward()
    assert x.grad.tolist() == [[0.0, 20.0], [200.0, 0.0]]


def test_a_sparse_source_brings_its_pattern_only_outside_of_autograd():
    source = csr(((1.0, 0.0), (0.0, 4.0)), gs.COO())
    t = csr()
    with torch.no_grad():
        assert copy_(t, source) is t
    assert t.format == gs.CSR() and t.to_dense().tolist() == [[1.0, 0.0], [0.0, 4.0]]
    source._values[0] = 7.0
    assert t.values().tolist() == [1.0, 4.0]  # values of its own
    t = csr()
    copy_(t, source)
    assert t.to_dense().tolist() == [[0.0, 0.0], [0.0, 0.0]] and t.nnz == 2


def test_a_dense_source_is_expanded_and_fills_the_stored_positions():
    t = csr()
    with torch.no_grad():
        copy_(t, torch.tensor([5.0, 6.0]))
    assert t.to_dense().tolist() == [[0.0, 6.0], [5.0, 0.0]]


def test_a_copy_has_the_type_of_its_target():
    t, source = csr(), csr(((1.0, 0.0), (0.0, 4.0))).double()
    with torch.no_grad():
        copy_(t, source)
    assert t.dtype is torch.float32 and t._values.dtype is torch.float32 and t.values().tolist() == [1.0, 4.0]


def test_back_from_a_dense_copy_only_if_it_was_written():
    t = csr()
    untouched = t.to_dense().clone()
    copy = torch.zeros(2, 2)
    copy.add_(1)
    out = write_back("add", copy, [(t, copy)])
    assert out is t and t.values().tolist() == [1.0, 1.0]
    other = object()
    assert write_back("add", other, [(csr(), untouched)]) is other


def test_batch_norm_writes_without_a_version():
    t, copy = csr(), torch.tensor([[0.0, 8.0], [9.0, 0.0]])
    assert copy._version == 0
    write_back("mul", None, [(t, copy)])
    assert t.values().tolist() == [2.0, 3.0]
    write_back("native_batch_norm", None, [(t, copy)])
    assert t.values().tolist() == [8.0, 9.0]


def test_an_assignment_where_nothing_is_stored_is_refused():
    t, copy = csr(), csr().to_dense()
    copy[0, 0] = 1.0
    with pytest.raises(IndexError, match=r"writes stored positions only.*t = gs.from_dense\(x, CSR\(\)\)"):
        write_back("__setitem__", None, [(t, copy)])
    copy[0, 0], copy[0, 1] = 0.0, 5.0
    write_back("__setitem__", None, [(t, copy)])
    assert t.values().tolist() == [5.0, 3.0]
    assert isinstance(not_stored(t), IndexError)
