"""Compressed rows on a GPU, run on a CPU by tests/native/emulator.py: arguments, indices and edges."""

import pytest
import torch

import gossamer as gs
from gossamer.kernels.csr import cuda as csr_cuda
from gossamer.native.build import compiler
from tests.native import emulator

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setattr(csr_cuda, "function", emulator.function)


def close(out, expected, dtype):
    bound = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 5e-2}
    torch.testing.assert_close(out.float(), expected, **bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (7, 45), (10, 40)])
@pytest.mark.parametrize("tokens", [1, 16, 17, 40, 136])
def test_csr(dtype, rows, cols, tokens):
    dense = (torch.randn(rows, cols) * (torch.rand(rows, cols) < 0.4)).to(dtype)
    dense[0] = 0
    matrix = gs.from_dense(dense, gs.CSR())
    pos, crd, values = matrix.structure.arrays["pos1"], matrix.structure.arrays["crd1"], matrix.values()
    wide = torch.randn(cols, 2 * tokens).to(dtype)
    for x in (torch.randn(tokens, cols).to(dtype).t(), torch.randn(cols, tokens).to(dtype), wide[:, ::2]):
        expected = dense.float() @ x.float()
        close(csr_cuda.spmm(pos, crd, values, rows, x, False), expected, dtype)
        out = csr_cuda.spmm(pos, crd, values, rows, x, True)
        assert out.is_contiguous()
        close(out, expected.t(), dtype)
