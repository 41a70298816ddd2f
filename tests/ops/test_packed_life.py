"""A packed weight through the life of a parameter: trained, copied, saved, loaded."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.core.tensor import build
from gossamer.formats import PackedCSR, PackedNM, PackedVNM
from gossamer.ops.packed import _on_gpu, read_as


def layer(format):
    torch.manual_seed(0)
    return gs.sparsify_(torch.nn.Linear(64, 40), "1:8", format=format)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("format", [PackedCSR(), PackedNM(1, 8)], ids=str)
def test_trains_as_a_masked_weight_does(format, optimizer):
    torch.manual_seed(1)
    x, y = torch.randn(32, 64), torch.randn(32, 40)
    nets = [layer(format), layer(gs.Masked())]
    for net in nets:
        steps = optimizer(net.parameters(), lr=0.01, weight_decay=0.1)
        for _ in range(5):
            steps.zero_grad()
            F.mse_loss(net(x), y).backward()
            steps.step()
    packed, masked = (net.weight.detach() for net in nets)
    assert packed.format == format
    torch.testing.assert_close(packed.to_dense(), masked.to_dense(), rtol=1e-4, atol=1e-5)
    packed.structure.check(packed._values)  # the padding is still zero


@pytest.mark.parametrize("format", [PackedCSR(), PackedNM(1, 8)], ids=str)
def test_copied_saved_and_loaded(format):
    net, x = layer(format), torch.randn(3, 64)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file)
    other = torch.nn.Linear(64, 40)
    other.weight, other.bias = torch.nn.Parameter(loaded["weight"]), torch.nn.Parameter(loaded["bias"])
    for twin in (copy.deepcopy(net), other):
        assert twin.weight.format == format
        assert torch.equal(twin(x), net(x))


def test_an_older_structure_is_not_read_when_values_change():
    net, x = layer(PackedCSR()), torch.randn(3, 64)
    before = net(x)
    with torch.no_grad():
        net.weight.mul_(2)
    torch.testing.assert_close(net(x) - net.bias, 2 * (before - net.bias))
    out = net(x)
    with torch.no_grad():
        net.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified in place"):
        out.sum().backward()


@pytest.mark.parametrize(("packed", "wanted"), [(PackedNM(2, 4), PackedVNM("all", 2, 4)), (PackedCSR(), gs.CSR())])
def test_as_a_gpu_reads_it(packed, wanted):
    weight = gs.sparsify(torch.randn(40, 64), "2:4", format=packed)
    turned = read_as(weight, wanted)
    assert turned.format == wanted and torch.equal(turned.to_dense(), weight.to_dense())
    assert read_as(weight, wanted) is turned
    weight.mul_(2)
    assert torch.equal(read_as(weight, wanted).to_dense(), weight.to_dense())


def test_what_a_gpu_reads_is_not_taken_for_other_values_at_the_same_address():
    packed = gs.sparsify(torch.randn(32, 64), "2:4", format=PackedNM(2, 4))
    memory = packed.values().numpy().copy()
    for factor in (1.0, 2.0):
        memory *= factor
        weight = build(torch.from_numpy(memory), packed.structure)  # the same address, structure and version
        assert torch.equal(read_as(weight, PackedVNM("all", 2, 4)).to_dense(), packed.to_dense() * factor)
    with torch.inference_mode():
        weight = build(torch.from_numpy(memory).clone(), packed.structure)
        read_as(weight, PackedVNM("all", 2, 4))
        weight._values.mul_(3)
        assert torch.equal(read_as(weight, PackedVNM("all", 2, 4)).to_dense(), weight.to_dense())


@pytest.mark.parametrize("format", [PackedCSR(), PackedNM(2, 4)], ids=str)
def test_the_path_of_a_gpu_on_a_cpu(format):
    dense = gs.sparsify(torch.randn(40, 64), "2:4", format=gs.Dense())
    weight, x, bias = gs.from_dense(dense, format), torch.randn(2, 3, 64), torch.randn(40)
    torch.testing.assert_close(_on_gpu(x, weight, bias, 0), F.linear(x, dense, bias), rtol=1e-4, atol=1e-5)
    assert _on_gpu(x.requires_grad_(), weight, bias, 0) is NotImplemented
