"""Feature-major and token-major; the kernel is run on a CPU by tests/native/emulator.py."""

import pytest
import torch

from gossamer.kernels import transpose as transpose_cuda
from gossamer.native.build import compiler
from tests.native import emulator


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_the_kernel(monkeypatch, dtype):
    monkeypatch.setattr(transpose_cuda, "function", emulator.function)
    wide = torch.arange(70 * 203).view(70, 203).to(dtype)
    for x in (wide[:, :1], wide[:65, :130], wide[:3], torch.arange(64 * 72).view(64, 72).to(dtype), wide.t()):
        lead = -(-x.shape[0] // 8) * 8
        out = transpose_cuda._launch(x, x.new_full((x.shape[1], lead), -1))
        assert torch.equal(out[:, : x.shape[0]], x.t())
        assert not out[:, x.shape[0] :].any()  # the padding is zeros


@pytest.mark.parametrize("shape", [(5, 16), (2, 3, 16), (1, 16), (0, 16), (8, 1)])
def test_there_and_back(shape):
    x = torch.randn(shape)
    turned = transpose_cuda.feature_major(x)
    assert torch.equal(turned, x)
    if x.numel() > 16:
        flat = turned.reshape(-1, shape[-1])
        assert flat.stride(0) == 1 and flat.stride(1) % 8 == 0 and flat.data_ptr() == turned.data_ptr()
        assert transpose_cuda.feature_major(turned) is turned
    back = transpose_cuda.token_major(turned)
    assert torch.equal(back, x) and back.is_contiguous()
