"""The programming model on a GPU: everything is right there; fast kernels are another matter."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from tests.formats_under_test import ALL

pytestmark = pytest.mark.gpu
formats = pytest.mark.parametrize("format", ALL, ids=repr)


@formats
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_linear_forward_and_backward(format, dtype):
    x = torch.randn(12, 18) * (torch.rand(12, 18) < 0.4)
    weight = nn.Parameter(gs.from_dense(x, format).to("cuda", dtype))
    dense = x.to("cuda", dtype).requires_grad_()
    inputs = torch.randn(5, 18, device="cuda", dtype=dtype)
    outs = []
    for w in (weight, dense):
        outs.append(F.linear(inputs, w))
        outs[-1].float().square().sum().backward()
    tolerance = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 5e-2}
    torch.testing.assert_close(outs[0], outs[1], **tolerance)
    torch.testing.assert_close(weight.grad.to_dense(), dense.grad * weight.mask(), **tolerance)


@formats
def test_there_and_back(format):
    x = torch.randn(6, 8) * (torch.rand(6, 8) < 0.4)
    t = gs.from_dense(x, format).cuda()
    assert t.device.type == "cuda"
    assert torch.equal(t.cpu().to_dense(), x)
    assert torch.equal((t.T * 2).to_dense().cpu(), 2 * x.T)
    assert torch.equal(gs.from_dense(x.cuda(), format).to_dense().cpu(), x)


@formats
def test_a_model_trains_and_keeps_its_pattern(format):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    model = gs.sparsify_(model, "80%", format=format).cuda()
    twin = gs.densify_(copy.deepcopy(model))
    mask = model[0].weight.mask()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(4, 16, device="cuda")
    torch.testing.assert_close(model(x), twin(x), rtol=1e-4, atol=1e-5)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert torch.equal(model[0].weight.mask(), mask)


def test_patterns_choose_the_same_on_both_devices():
    x = torch.randn(64, 96)
    for how in ("90%", "2:4", "fan-in 75%", "block 4x4 50%", "16:2:8", "1:4:g4", gs.sparsifiers.RandomFraction(0.5)):
        a, b = gs.sparsify(x, how, gs.Masked()), gs.sparsify(x.cuda(), how, gs.Masked())
        assert torch.equal(a.mask(), b.mask().cpu()), how


def test_compile_in_one_graph():
    model = gs.sparsify_(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)), "80%", format=gs.CSR()).cuda()
    x = torch.randn(4, 16, device="cuda")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))
