"""Packed rows as a GPU reads them: the conversion, tried on a CPU."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.core.join import build
from gossamer.formats import PackedCSR, PackedNM, PackedVNM
from gossamer.kernels.csr.product import CsrProduct
from gossamer.kernels.product import Case, Linear
from gossamer.kernels.vnm.product import VnmProduct
from gossamer.ops.elsewhere import ElsewhereProduct, read_as
from gossamer.ops.product import chosen

VNM = PackedVNM("all", 2, 4)


def read(weight, format=VNM):
    family = VnmProduct if isinstance(format, PackedVNM) else CsrProduct
    return read_as(weight._values, weight.structure, format, family)[0]


@pytest.mark.parametrize(("packed", "wanted"), [(PackedNM(2, 4), VNM), (PackedCSR(), gs.CSR())])
def test_it_is_converted_once_for_the_values_that_are_there(packed, wanted):
    weight = gs.sparsify(torch.randn(40, 64), "2:4", format=packed)
    converted = read(weight, wanted)
    assert converted.format == wanted and torch.equal(converted.to_dense(), weight.to_dense())
    assert read(weight, wanted) is converted
    weight.mul_(2)
    assert torch.equal(read(weight, wanted).to_dense(), weight.to_dense())


def test_it_is_not_taken_for_other_values_at_the_same_address():
    packed = gs.sparsify(torch.randn(32, 64), "2:4", format=PackedNM(2, 4))
    memory = packed.values().numpy().copy()
    for factor in (1.0, 2.0):
        memory *= factor
        weight = build(torch.from_numpy(memory), packed.structure)  # the same address, structure and version
        assert torch.equal(read(weight).to_dense(), packed.to_dense() * factor)
    with torch.inference_mode():
        weight = build(torch.from_numpy(memory).clone(), packed.structure)
        read(weight)
        weight._values.mul_(3)
        assert torch.equal(read(weight).to_dense(), weight.to_dense())


@pytest.mark.parametrize("format", [PackedCSR(), PackedNM(2, 4)], ids=str)
def test_products_and_gradients(format):
    dense = gs.sparsify(torch.randn(40, 64), "2:4", format=gs.Dense()).requires_grad_()
    weight, bias = gs.from_dense(dense.detach(), format), torch.randn(40)
    x = torch.randn(2, 3, 64, requires_grad=True)
    kernel = ElsewhereProduct(weight.structure, False)
    values = weight._values.clone().requires_grad_()
    out, reference = Linear.apply(x, values, bias, kernel), F.linear(x, dense, bias)
    torch.testing.assert_close(out, reference, rtol=1e-4, atol=1e-5)
    grad = torch.randn_like(out)
    ours, theirs = torch.autograd.grad(out, (x, values), grad), torch.autograd.grad(reference, (x, dense), grad)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(build(ours[1], weight.structure).to_dense(), theirs[1] * weight.mask())


def test_it_is_for_gpus():
    here = Case(PackedNM, False, torch.float32, "cpu", False, False)
    assert ElsewhereProduct.takes(here) == "the weight is on a CPU"
    there = here._replace(device="cuda")
    assert chosen(*there) is ElsewhereProduct
    assert chosen(*there._replace(traced=True)) is chosen(*there._replace(transpose=True)) is CsrProduct
