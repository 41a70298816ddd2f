"""Compressed and packed rows on a GPU: right for any shape and type."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from gossamer.formats import Condensed, PackedCSR, PackedNM
from tests.gpu.right import assert_right

pytestmark = pytest.mark.gpu
CASES = [
    ("90%", gs.CSR()),
    ("90%", gs.CSC()),
    ("90%", PackedCSR()),
    ("fan-in 80%", Condensed()),
    ("2:4", PackedNM(2, 4)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("how", "format"), CASES, ids=str)
def test_every_shape(how, format, dtype):
    for rows, cols in ((1, 1), (40, 130), (400, 1000), (1025, 64)):
        dense = gs.sparsify(torch.randn(rows, cols, device="cuda").to(dtype), how, format=gs.Dense())
        weight, bias = gs.from_dense(dense, format), torch.randn(rows, device="cuda").to(dtype)
        for tokens in (1, 3, 8, 9, 16, 17, 33, 100, 257):
            for x in (torch.randn(tokens, cols, device="cuda"), torch.randn(cols, tokens, device="cuda").t()):
                x = x.to(dtype)
                assert_right(F.linear(x, weight), x, dense)
                assert_right(F.linear(x, weight, bias), x, dense, bias, twice=True)


def test_empty_rows_and_no_tokens():
    dense = torch.zeros(40, 64, device="cuda")
    dense[3, 5] = 2.0
    for format in (gs.CSR(), PackedCSR()):
        weight = gs.from_dense(dense, format)
        for tokens in (0, 1, 40):
            x = torch.randn(tokens, 64, device="cuda")
            assert torch.equal(F.linear(x, weight), x @ dense.t())
        empty = gs.from_dense(torch.zeros_like(dense), format)
        assert not F.linear(torch.randn(3, 64, device="cuda"), empty).any()


@pytest.mark.parametrize("format", [gs.CSR(), PackedCSR()], ids=str)
@pytest.mark.parametrize("tokens", [3, 100])
def test_the_same_bits_every_time(format, tokens):
    weight = gs.sparsify(torch.randn(500, 700, device="cuda").half(), "90%", format)
    x = torch.randn(tokens, 700, device="cuda").half()
    first = F.linear(x, weight)
    assert all(torch.equal(F.linear(x, weight), first) for _ in range(5))


@pytest.mark.parametrize("format", [gs.CSR(), PackedCSR()], ids=str)
def test_graphs_and_activations(format):
    dense = gs.sparsify(torch.randn(500, 700, device="cuda").half(), "90%", format=gs.Dense())
    weight, bias = gs.from_dense(dense, format), torch.randn(500, device="cuda").half()
    x = torch.randn(4, 700, device="cuda").half()
    gs.linear(x, weight, bias, "gelu")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gs.linear(x, weight, bias, "gelu")
    x.copy_(torch.randn(4, 700))
    graph.replay()
    torch.testing.assert_close(out, F.gelu(F.linear(x, dense, bias)), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("format", [gs.CSR(), PackedCSR()], ids=str)
def test_gradients(format):
    dense = gs.sparsify(torch.randn(60, 90, device="cuda"), "80%", format=gs.Dense())
    weight, leaf = nn.Parameter(gs.from_dense(dense, format)), dense.clone().requires_grad_()
    for tokens in (3, 100):
        x = torch.randn(tokens, 90, device="cuda", requires_grad=True)
        gx, gw = torch.autograd.grad(F.linear(x, weight).square().sum(), (x, weight))
        dx, dw = torch.autograd.grad(F.linear(x, leaf).square().sum(), (x, leaf))
        torch.testing.assert_close(gx, dx, rtol=1e-3, atol=1e-2)
        torch.testing.assert_close(gw.to_dense(), torch.where(weight.mask(), dw, 0), rtol=1e-3, atol=1e-1)
