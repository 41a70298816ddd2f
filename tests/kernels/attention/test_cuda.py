"""Masked attention on a GPU, run on a CPU by tests/native/emulator.py: tiles, splits, edges, strides."""

import math

import pytest
import torch

import gossamer as gs
from gossamer.kernels.attention import cuda
from gossamer.native.build import compiler
from tests.native import emulator

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setattr(cuda, "function", emulator.function)
    monkeypatch.setattr(cuda, "_multiprocessors", lambda device: 1)
    for kept in (cuda._functions, cuda._splits):
        kept.cache_clear()
    yield
    for kept in (cuda._functions, cuda._splits):
        kept.cache_clear()


def exact(q, k, v, mask, scale):
    scores = (q.double() @ k.double().transpose(1, 2) * scale).masked_fill(~mask, -math.inf)
    return torch.nan_to_num(scores.softmax(-1)) @ v.double()


def close(found, q, k, v, mask, scale):
    """Scores are exact to float32; weights and results are rounded to the type of the values."""
    eps = torch.finfo(q.dtype).eps
    bound = 2 * eps * exact(q, k, v.abs(), mask, scale) + 1e-6
    assert ((found.double() - exact(q, k, v, mask, scale)).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [16, 64, 128])
def test_widths_and_types(dtype, width):
    q, k, v = (torch.randn(2, n, width).to(dtype) for n in (70, 130, 130))
    mask = torch.rand(70, 130) < 0.2
    mask[3] = False
    found = cuda.attend(q, k, v, gs.from_dense(mask.float(), gs.CSR()).structure, 0.3)
    close(found, q, k, v, mask, 0.3)
    assert not found[:, 3].any()


@pytest.mark.parametrize("units", [1, 40])
def test_few_queries_are_divided_among_blocks(monkeypatch, units):
    monkeypatch.setattr(cuda, "_multiprocessors", lambda device: units)
    monkeypatch.setattr(cuda, "_EACH", 1)
    q, k, v = (torch.randn(1, n, 32).bfloat16() for n in (9, 300, 300))
    mask = torch.rand(9, 300) < 0.3
    mask[:, :64] = False  # the first part of the tiles is empty
    mask[0] = False
    mask[1] = torch.arange(300) == 299
    close(cuda.attend(q, k, v, gs.from_dense(mask.float(), gs.CSR()).structure, 0.2), q, k, v, mask, 0.2)


def test_large_scores_and_strided_heads():
    whole = torch.randn(70, 3, 2, 32).bfloat16()
    q, k, v = (whole[:, i].transpose(0, 1) for i in range(3))
    mask = torch.rand(70, 70) < 0.5
    structure = gs.from_dense(mask.float(), gs.CSC()).structure
    close(cuda.attend(30 * q, k, v, structure, 1.0), 30 * q, k, v, mask, 1.0)
    close(cuda.attend(q, k[:, :, :], v.flip(2).flip(2), structure, 1.0), q, k, v, mask, 1.0)


def test_what_it_takes():
    dense = torch.zeros(64, 64)
    dense[:, :2] = 1
    assert cuda.few_entries(gs.from_dense(dense, gs.CSR()).structure, 128) is None
    few = cuda.few_entries(gs.from_dense(torch.eye(4), gs.CSR()).structure, 128)
    assert few == "1 tiles of 128 x 64 positions have 4 entries: too few for each"
    assert "float32" in cuda.refusal(torch.float32, 64, 64, 1.0)
    assert "multiples of 16" in cuda.refusal(torch.float16, 40, 40, 1.0)
    assert "positive" in cuda.refusal(torch.float16, 64, 64, -1.0)
    assert (cuda.high(64), cuda.high(80)) == (128, 64)


def test_splits(monkeypatch):
    monkeypatch.setattr(cuda, "_multiprocessors", lambda device: 132)
    assert cuda._splits(0, 64, 128) == 4 and cuda._splits(1, 64, 9) == 1 and cuda._splits(0, 1024, 128) == 1
