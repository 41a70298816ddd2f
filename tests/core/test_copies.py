"""Copies of a sparse tensor: what is shared, what is not, and which options go along."""

import pytest
import torch

import gossamer as gs
from gossamer.core.copies import cloned, detached, moved, with_options_of
from tests.formats_under_test import ALL


def csr(**options):
    t = gs.from_dense(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), gs.CSR())
    t.grad_format = options.get("grad_format")
    return t


def test_a_clone_has_values_of_its_own_and_the_same_structure():
    t = csr(grad_format=gs.Dense())
    copy = cloned(t)
    copy._values[0] = 9.0
    assert t.values().tolist() == [2.0, 3.0] and copy.values().tolist() == [9.0, 3.0]
    assert copy.structure is t.structure
    assert copy.grad_format == gs.Dense()


def test_the_gradient_of_a_clone_comes_back():
    t = csr().requires_grad_()
    (cloned(t).to_dense() * torch.tensor([[10.0, 20.0], [30.0, 40.0]])).sum().backward()
    assert t.grad.to_dense().tolist() == [[0.0, 20.0], [30.0, 0.0]]


def test_a_detached_tensor_shares_everything_but_the_graph():
    t = csr(grad_format=gs.Dense()).requires_grad_()
    out = detached(t)
    assert not out.requires_grad and t.requires_grad
    assert out.structure is t.structure and out.grad_format == gs.Dense()
    out._values[1] = 8.0
    assert t._values.tolist() == [2.0, 8.0]


def test_a_detached_tensor_keeps_its_owner_and_a_clone_does_not():
    t = csr()
    t._owner = object()
    assert detached(t)._owner is t._owner
    assert cloned(t)._owner is None and moved(t)._owner is None


@pytest.mark.parametrize("format", ALL, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32], ids=str)
def test_another_type_has_the_same_entries(format, dtype):
    t = gs.from_dense(torch.tensor([[0.0, 2.0, -1.0], [3.0, 0.0, 0.0]]), format)
    t.grad_format = gs.Dense()
    out = moved(t, dtype=dtype)
    assert out.dtype is dtype and out.format == format and out.grad_format == gs.Dense()
    assert out.to_dense().tolist() == [[0, 2, -1], [3, 0, 0]]
    assert t.dtype is torch.float32


def test_without_a_change_the_values_are_still_copied():
    t = csr()
    out = moved(t)
    assert out.dtype is torch.float32 and out.device == t.device
    out._values.zero_()
    assert t.values().tolist() == [2.0, 3.0]


def test_to_the_meta_device_and_with_words_that_aten_adds():
    out = moved(csr(), device=torch.device("meta"), non_blocking=True)
    assert out.device.type == "meta" and out.structure.arrays["crd1"].device.type == "meta"
    assert out.dtype is torch.float32


def test_options_go_from_source_to_result():
    source, out = csr(grad_format=gs.Dense()), csr()
    assert with_options_of(out, source) is out
    assert out.grad_format == gs.Dense()
    assert with_options_of(source, csr()).grad_format is None
