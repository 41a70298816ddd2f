"""Attention of single queries over a cache: the kernel in the emulator, and the operator on a CPU."""

import math

import pytest
import torch

from gossamer.kernels import gpu
from gossamer.kernels.attention import decode
from gossamer.native.build import compiler
from tests.kernels.vnm.hopper import emulate
from tests.native import emulator

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.fixture
def hopper(monkeypatch):
    emulate(monkeypatch, decode, 1)
    monkeypatch.setattr(decode, "function", emulator.function)


def operands(batch, heads, groups, keys, width, dtype=torch.bfloat16, room=0):
    torch.manual_seed(batch + keys + width)
    q = torch.randn(batch, heads, 1, width).to(dtype)
    k, v = (torch.randn(batch, groups, keys + room, width).to(dtype)[:, :, :keys] for _ in range(2))
    return q, k, v


def exact(q, k, v, mask, scale):
    repeated = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(repeated, 1) for x in (k, v))
    scores = q.double() @ k.transpose(2, 3) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return (torch.nan_to_num(scores.softmax(-1)) @ v).transpose(1, 2)


def check(found, q, k, v, mask, scale):
    eps = torch.finfo(q.dtype).eps  # weights and results are rounded to the type
    bound = 2 * eps * exact(q, k, v.abs(), mask, scale) + 1e-6
    assert found.dtype is q.dtype and found.shape == (q.shape[0], 1, q.shape[1], q.shape[3])
    assert ((found.double() - exact(q, k, v, mask, scale)).abs() <= bound).all()


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("batch", "heads", "groups", "keys", "width"),
    [(1, 1, 1, 1, 16), (2, 8, 2, 40, 64), (3, 4, 4, 16, 32), (1, 16, 1, 129, 128), (2, 6, 2, 77, 80)],
)
def test_against_exact_numbers(hopper, dtype, batch, heads, groups, keys, width):
    q, k, v = operands(batch, heads, groups, keys, width, dtype, room=3)
    check(decode.KINDS.run(q, k, v, None, 0.3), q, k, v, None, 0.3)
    mask = torch.rand(batch, 1, 1, keys) < 0.4
    mask[..., 0] = True
    check(decode.KINDS.run(q, k, v, mask, 0.3), q, k, v, mask, 0.3)
    check(decode.KINDS.run(q, k, v, mask[:1], 0.3), q, k, v, mask[:1], 0.3)


@needs_compiler
def test_a_cache_that_is_filled_to_a_different_length(hopper):
    q, k, v = operands(3, 8, 2, 256, 64)
    used = torch.tensor([1, 100, 256])
    mask = (torch.arange(256) < used[:, None])[:, None, None]
    for x in (k, v):
        x.masked_fill_(~mask.transpose(2, 3), torch.nan)  # places that are not in use may hold anything
    found = decode.KINDS.run(q, k, v, mask, 0.125)
    for x in (k, v):
        x.masked_fill_(~mask.transpose(2, 3), 0)
    check(found, q, k, v, mask, 0.125)


@needs_compiler
@pytest.mark.parametrize("processors", [1, 3, 40])
def test_long_caches_are_divided(hopper, monkeypatch, processors):
    monkeypatch.setattr(gpu, "processors", lambda device: processors)
    monkeypatch.setattr(decode, "_EACH", 2)
    q, k, v = operands(1, 4, 2, 600, 32)
    mask = torch.rand(1, 1, 1, 600) < 0.5
    mask[..., :200] = False  # some parts have nothing
    check(decode.KINDS.run(q, k, v, mask, 0.2), q, k, v, mask, 0.2)
    check(decode.KINDS.run(30 * q, k, v, None, 1.0), 30 * q, k, v, None, 1.0)
    assert not decode.KINDS.run(q, k, v, torch.zeros_like(mask), 0.2).any()  # nothing is allowed


@needs_compiler
def test_nan_and_strides(hopper):
    whole = torch.randn(5, 2, 33, 3, 64).half()
    k, v = whole[:, :, :, 0], whole[:, :, :, 2]  # rows are apart from each other
    q = torch.randn(5, 1, 4, 64).half().transpose(1, 2)
    check(decode.KINDS.run(q, k, v, None, 0.125), q, k, v, None, 0.125)
    odd = torch.randn(5, 2, 33, 65).half()[..., :64]  # rows at no multiple of 16 bytes
    check(decode.KINDS.run(q, odd, odd, None, 0.125), q, odd, odd, None, 0.125)
    k = k.clone()
    k[1, 0, 3] = torch.nan
    found = decode.KINDS.run(q, k, v, None, 0.125)
    assert found[1, 0, :2].isnan().all() and found[1, 0, 2:].isfinite().all() and found[0].isfinite().all()


def test_what_it_takes(monkeypatch):
    q, k = torch.zeros(2, 8, 1, 64).half(), torch.zeros(2, 2, 9, 64).half()
    monkeypatch.setattr(gpu, "capability", lambda device: (7, 5))
    assert "GPU" in decode.takes(q, k, k, None)
    assert "one type" in decode.takes(q, k.bfloat16(), k, None) and "one type" in decode.takes(q.float(), k, k, None)
    assert "one query" in decode.takes(torch.zeros(2, 8, 2, 64).half(), k, k, None)
    assert "one shape" in decode.takes(q, k, k[:, :, :8], None)
    assert "columns" in decode.takes(q[..., :24], k[..., :24], k[..., :24], None)
    assert "bool" in decode.takes(q, k, k, torch.zeros(2, 1, 1, 9))
    assert "bool" in decode.takes(q, k, k, torch.zeros(2, 8, 1, 9) > 0)
    assert not decode._has_kernel(0)


@pytest.mark.parametrize("masked", [False, True])
def test_on_a_cpu(masked):
    q, k, v = operands(2, 6, 2, 11, 16, torch.float16)
    mask = torch.rand(2, 1, 1, 11) < 0.5 if masked else None
    if masked:
        mask[..., 0] = True
    check(torch.ops.gossamer.decode_attention(q, k, v, mask, 0.25), q, k, v, mask, 0.25)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.gossamer.decode_attention.default, (q, k, v, mask, 0.25), test_utils=tests)


def test_gradients_are_for_torch(monkeypatch):
    monkeypatch.setattr(decode, "takes", lambda *given: None)
    q, k, v = operands(1, 2, 1, 4, 16)
    assert decode.decode_attention(q.requires_grad_(), k, v) is None
    with torch.no_grad():
        assert decode.decode_attention(q, k, v).shape == (1, 1, 2, 16)
