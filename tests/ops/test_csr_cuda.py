"""Compressed and packed rows on a GPU, run on a CPU by tests/native/emulator.py: arguments, indices and edges."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.formats import Condensed, PackedCSR
from gossamer.native.build import compiler
from gossamer.ops import csr_cuda, rows_cuda
from tests.native import emulator

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    for module in (csr_cuda, rows_cuda):
        monkeypatch.setattr(module, "function", emulator.function)
        monkeypatch.setattr(module, "usable", lambda: True)
    monkeypatch.setattr(rows_cuda, "_processors", lambda device: 2)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("format", [PackedCSR(), PackedCSR(7), Condensed()], ids=repr)
def test_packed_rows(dtype, format):
    for rows, cols in ((1, 1), (20, 300), (400, 130)):
        how = "fan-in 80%" if isinstance(format, Condensed) else "80%"
        dense = gs.sparsify(torch.randn(rows, cols).to(dtype), how, format=gs.Dense())
        weight, bias = gs.from_dense(dense, format), torch.randn(rows).to(dtype)
        for tokens in (1, 3, 8, 19) if rows == 20 else (2,):
            x = torch.randn(tokens, cols).to(dtype)
            expected = F.silu(F.linear(x.float(), dense.float(), bias.float()))
            close(rows_cuda.linear(x, weight, bias, 3), expected, dtype)
        turned = torch.randn(cols, 2).to(dtype).t()
        close(rows_cuda.linear(turned, weight, None, 0), turned.float() @ dense.float().t(), dtype)


def test_what_is_left_to_others():
    weight = gs.sparsify(torch.randn(20, 64), "80%", format=PackedCSR())
    for x, bias in (
        (torch.randn(100, 64), None),
        (torch.randn(0, 64), None),
        (torch.randn(2, 64).double(), None),
        (torch.randn(2, 64), torch.zeros(20).double()),
    ):
        assert rows_cuda.linear(x, weight, bias, 0) is NotImplemented
