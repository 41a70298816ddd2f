"""gs.mask: ones at the entries, stored zeros among them, padding not."""

import pytest
import torch

import gossamer as gs


@pytest.mark.parametrize("format", [gs.CSR(), gs.COO(), gs.BSR((2, 2)), gs.ELL(), gs.Masked(), gs.formats.PackedCSR()])
def test_ones_where_there_are_entries(format):
    torch.manual_seed(0)
    a = gs.from_dense(torch.randn(5, 7) * (torch.rand(5, 7) < 0.4), format)
    m = gs.mask(a)
    assert m.structure is a.structure and m.dtype == a.dtype and not m.requires_grad
    assert torch.equal(m.to_dense(), a.mask().to(a.dtype))


def test_it_samples_a_product_whatever_the_values_are():
    a = gs.from_dense(torch.tensor([[0.0, 3.0], [4.0, 0.0]]), gs.CSR())
    a = gs.SparseTensor(torch.zeros(2), a.structure)
    q = torch.ones(2, 3, requires_grad=True)
    got = gs.einsum("ij,id,jd->ij", gs.mask(a), q, torch.ones(2, 3))
    assert got.values().tolist() == [3, 3]
    got.values().sum().backward()
    assert q.grad.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_types():
    a = gs.from_dense(torch.eye(2), gs.CSR())
    assert gs.mask(a, torch.float64).dtype == torch.float64
    with pytest.raises(TypeError, match="from_dense"):
        gs.mask(torch.eye(2))
