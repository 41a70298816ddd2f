"""gs.attention on a GPU: one kernel, right for widths, types, masks and gradients, and the same bits every time."""

import math

import pytest
import torch

import gossamer as gs

pytestmark = pytest.mark.gpu


def masks(tokens):
    place = torch.arange(tokens, device="cuda")
    return {
        "window": (place[:, None] - place).abs() <= tokens // 20,
        "random": torch.rand(tokens, tokens, device="cuda") < 0.05,
        "causal": place[:, None] >= place,
    }


def exact(q, k, v, mask, scale):
    scores = (q.double() @ k.double().transpose(-1, -2) * scale).masked_fill(~mask, -math.inf)
    return torch.nan_to_num(scores.softmax(-1)) @ v.double()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [16, 64, 80, 128])
@pytest.mark.parametrize("name", ["window", "random", "causal"])
def test_one_kernel(dtype, width, name):
    mask = masks(1000)[name]
    mask[5] = False
    sparse = gs.from_dense(mask.float(), gs.CSR())
    q, k, v = torch.randn(3, 2, 3, 1000, width, device="cuda", dtype=dtype)
    assert gs.explain(gs.attention, q, k, v, sparse).how == "native"
    out, scale = gs.attention(q, k, v, sparse), 1 / math.sqrt(width)
    bound = 2 * torch.finfo(dtype).eps * exact(q, k, v.abs(), mask, scale) + 1e-5
    assert bool(((out.double() - exact(q, k, v, mask, scale)).abs() <= bound).all())
    assert torch.equal(out, gs.attention(q, k, v, sparse)) and not out[:, :, 5].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_gradients(dtype):
    mask = masks(512)["window"]
    sparse = gs.from_dense(mask.float(), gs.CSR())
    q, k, v = (torch.randn(2, 512, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    arriving = torch.randn(2, 512, 64, device="cuda", dtype=dtype)
    found = torch.autograd.grad(gs.attention(q, k, v, sparse), (q, k, v), arriving)
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    wanted = torch.autograd.grad(exact(*leaves, mask, 0.125), leaves, arriving.double())
    for mine, other in zip(found, wanted, strict=True):
        assert (mine.double() - other).norm() < (4e-2 if dtype == torch.bfloat16 else 1e-4) * other.norm()
