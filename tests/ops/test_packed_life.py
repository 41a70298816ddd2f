"""A packed weight through the life of a parameter: trained, copied, saved, loaded."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.formats import PackedCSR, PackedNM


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
    other = layer(format)
    other.load_state_dict(torch.load(file))
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
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


LARGE = {
    "packed rows": lambda: F.linear(torch.ones(8200, 16), gs.sparsify(torch.ones(1024, 16), "50%", format=PackedCSR())),
    "blocks": lambda: F.linear(torch.ones(8200, 16), gs.from_dense(torch.ones(1024, 16), gs.BSR((4, 4)))),
    "einsum": lambda: gs.einsum("ij,kj->ki", gs.from_dense(torch.ones(1024, 16), gs.CSR()), torch.ones(8200, 16)),
    "to_dense": lambda: gs.from_dense(torch.eye(2900), gs.CSR()).to_dense(),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_results_can_be_resized_as_any_tensor(name):
    out = LARGE[name]()
    assert out.nbytes >= 32 << 20
    kept, storage = out[:2].clone(), out.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)  # what FSDP does to free memory
    assert storage.nbytes() == 0
    storage.resize_(size)
    out[:2] = kept
    assert torch.equal(out[:2], kept)
    assert out.resize_(3, 4).shape == (3, 4)
