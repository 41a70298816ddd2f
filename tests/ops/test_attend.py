"""gs.attention: by steps on a CPU, by one kernel in the emulator; against dense attention, forward and backward."""

import math

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.kernels.attention import cuda
from gossamer.native.build import compiler
from tests.native import emulator


def exact(q, k, v, mask, scale=None):
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~mask.mask(), -math.inf)
    return torch.nan_to_num(scores.softmax(-1)) @ v


def pattern(rows, columns, format=None):
    mask = torch.rand(rows, columns) < 0.3
    mask[:, 0] = True
    return gs.from_dense(mask.float(), format or gs.CSR())


def test_by_hand():
    """Each token attends to itself and to the one before it, with equal scores."""
    window = gs.from_dense(torch.ones(4, 4).tril().triu(-1), gs.CSR())
    v = torch.tensor([[1.0], [3.0], [5.0], [7.0]])
    assert gs.attention(torch.zeros(4, 2), torch.zeros(4, 2), v, window).tolist() == [[1.0], [2.0], [4.0], [6.0]]


@pytest.mark.parametrize("format", [gs.CSR(), gs.CSC(), gs.COO(), gs.BSR((2, 2)), gs.Masked()], ids=str)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
def test_batches_formats_and_gradients(format, lead):
    mask = pattern(6, 10, format)
    q, k, v = (torch.randn(*lead, n, d, dtype=torch.float64, requires_grad=True) for n, d in ((6, 4), (10, 4), (10, 5)))
    out, expected = gs.attention(q, k, v, mask), exact(q, k, v, mask)
    torch.testing.assert_close(out, expected)
    found, wanted = (torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (out, expected))
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other)


def test_scales_broadcasts_and_queries_without_entries():
    mask = gs.from_dense(torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), gs.CSR())
    q, k, v = torch.randn(4, 3, 8), torch.randn(2, 8), torch.randn(1, 2, 8)
    out = gs.attention(q, k, v, mask, scale=-2.0)
    torch.testing.assert_close(out, exact(q, k, v, mask, -2.0))
    assert not out[:, 0].any() and torch.equal(out[:, 2], v[0, 1].expand(4, 8))
    assert gs.attention(q[:0], k, v, mask).shape == (0, 3, 8)


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
def test_one_kernel_has_the_gradients_of_the_steps(monkeypatch):
    monkeypatch.setattr(cuda, "takes", lambda q, v, structure, scale: cuda.refusal(q.dtype, 16, 16, scale))
    monkeypatch.setattr(cuda, "function", emulator.function)
    monkeypatch.setattr(cuda, "_splits", lambda *args: 2)
    cuda._functions.cache_clear()
    mask = pattern(70, 90)
    q, k, v = (torch.randn(2, n, 16).bfloat16().requires_grad_() for n in (70, 90, 90))
    out, expected = gs.attention(q, k, v, mask), exact(q.float(), k.float(), v.float(), mask)
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)
    found, wanted = (torch.autograd.grad(y.float().square().sum(), (q, k, v)) for y in (out, expected))
    for mine, other in zip(found, wanted, strict=True):
        assert (mine.float() - other.float()).norm() <= 2e-2 * other.float().norm()
    cuda._functions.cache_clear()


def test_dense_attention_with_the_same_mask():
    mask = pattern(20, 30)
    q, k, v = (torch.randn(2, 4, n, 16) for n in (20, 30, 30))
    torch.testing.assert_close(gs.attention(q, k, v, mask), F.scaled_dot_product_attention(q, k, v, mask.mask()))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda q, k, v, m: (q, k, v, m.to_dense()), TypeError, "not a sparse tensor"),
        (lambda q, k, v, m: (q[:, :3], k, v, m), ValueError, "must agree"),
        (lambda q, k, v, m: (q, k, v[:, :2], m), ValueError, "must agree"),
        (lambda q, k, v, m: (q[0, 0], k, v, m), ValueError, "two dimensions or more"),
        (lambda q, k, v, m: (q, k.double(), v, m), TypeError, "one floating-point type"),
        (lambda q, k, v, m: (q.int(), k.int(), v.int(), m), TypeError, "one floating-point type"),
    ],
)
def test_what_is_refused(change, error, words):
    given = (torch.randn(2, 5, 8), torch.randn(2, 6, 8), torch.randn(2, 6, 8), pattern(5, 6))
    with pytest.raises(error, match=words):
        gs.attention(*change(*given))


def test_between_two_graphs():
    mask, (q, k, v) = pattern(6, 6), torch.randn(3, 2, 6, 8)
    step = torch.compile(lambda q: gs.attention(2 * q, k, v, mask).relu(), backend="aot_eager")
    torch.testing.assert_close(step(q), gs.attention(2 * q, k, v, mask).relu())
