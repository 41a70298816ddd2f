"""Packed V:N:M as torch sees it: operators that trace, differentiate, and keep the order of their input."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.formats import PackedVNM
from gossamer.kernels.vnm.operators import vnm_of


def packed(rows, cols, v, m, dtype=torch.float32):
    dense = gs.sparsify(torch.randn(rows, cols, dtype=dtype), gs.VNM(v, 2, m), format=gs.Dense())
    return dense, gs.from_dense(dense, PackedVNM(v, 2, m))


def test_operators_keep_torchs_rules():
    _, weight = packed(20, 70, 16, 8, torch.float64)
    shared, meta, sizes = vnm_of(weight.structure)
    values = weight.values().requires_grad_()
    bias, ops = torch.randn(20, dtype=torch.float64), torch.ops.gossamer
    for x in (torch.randn(3, 70, dtype=torch.float64).requires_grad_(), torch.randn(70, 3, dtype=torch.float64).t()):
        torch.library.opcheck(ops.vnm_linear.default, (values, shared, meta, x, bias, *sizes, 0))
    torch.library.opcheck(ops.vnm_linear.default, (values.detach(), shared, meta, x.detach(), None, *sizes, 2))
    torch.library.opcheck(ops.vnm_decode.default, (values, shared, meta, *sizes))
    torch.library.opcheck(ops.vnm_sample.default, (torch.randn(20, 70), shared, meta, *sizes))


def test_the_result_lies_as_the_input_does():
    dense, weight = packed(20, 70, 16, 8)
    for x in (torch.randn(6, 70), torch.randn(70, 6).t()):
        out = F.linear(x, weight)
        torch.testing.assert_close(out, x @ dense.t(), rtol=1e-4, atol=1e-4)
        assert out.stride() == ((20, 1) if x.is_contiguous() else (1, 8))
    three = torch.randn(2, 3, 70)
    torch.testing.assert_close(F.linear(three, weight), three @ dense.t(), rtol=1e-4, atol=1e-4)


def test_matmul():
    dense, weight = packed(20, 70, 16, 8)
    x = torch.randn(70, 6)
    torch.testing.assert_close(weight @ x, dense @ x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weight @ x[:, 0], dense @ x[:, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.mm(weight, x), dense @ x, rtol=1e-4, atol=1e-4)
    assert (weight @ x).is_contiguous()


def test_compiles_in_one_graph_with_gradients():
    dense, weight = packed(20, 70, 16, 8)
    layer = torch.nn.Linear(70, 20)
    layer.weight = torch.nn.Parameter(weight)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 70, requires_grad=True)
    out = compiled(x)
    torch.testing.assert_close(out, F.linear(x, dense, layer.bias), rtol=1e-4, atol=1e-4)
    gx, gw = torch.autograd.grad(out.square().sum(), (x, layer.weight))
    leaf = dense.requires_grad_()
    dx, dw = torch.autograd.grad(F.linear(x, leaf, layer.bias).square().sum(), (x, leaf))
    torch.testing.assert_close(gx, dx, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gw.to_dense(), torch.where(weight.mask(), dw, 0), rtol=1e-4, atol=1e-4)


def test_wrong_types_are_torchs_own_error():
    _, weight = packed(20, 70, 16, 8)
    with pytest.raises(RuntimeError, match="dtype"), gs.fallback("silent"):
        F.linear(torch.randn(3, 70).double(), weight)
    with pytest.raises(RuntimeError, match="shapes"), gs.fallback("silent"):
        F.linear(torch.randn(3, 71), weight)


def test_a_weight_that_wants_a_dense_gradient_gets_one():
    dense, weight = packed(20, 70, 16, 8)
    weight.requires_grad_()
    weight.grad_format = gs.Dense()
    x = torch.randn(5, 70)
    F.linear(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, torch.ones(5, 20).t() @ x, rtol=1e-4, atol=1e-4)
    assert dense.shape == weight.grad.shape


@pytest.mark.parametrize("m", [8, 16])
def test_a_trace_gathers_first(m, monkeypatch):
    layer = gs.sparsify_(torch.nn.Linear(16 * m, 20), gs.VNM("all", 2, m), format=PackedVNM("all", 2, m))
    dense = layer.weight.to_dense().detach()
    product, seen = gs.kernels.vnm.product.VnmProduct, []
    monkeypatch.setattr(product, "gathers", lambda self, tokens: True)

    def backend(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    with torch.no_grad():
        for x in (torch.randn(12, 16 * m), torch.randn(2, 3, 16 * m)):
            out = torch.compile(layer, fullgraph=True, backend=backend)(x)
            torch.testing.assert_close(out, F.linear(x, dense, layer.bias), rtol=1e-4, atol=1e-4)
    assert "index_select" in seen


def test_when_a_trace_gathers(monkeypatch):
    product = gs.kernels.vnm.product
    monkeypatch.setattr(product, "_hopper", lambda device: True)

    class Shape:  # a tensor on a GPU, as far as the question goes
        is_cuda, dtype = True, torch.bfloat16
        get_device = staticmethod(lambda: 0)

        def __init__(self, tokens):
            self.shape = (tokens, 128)

    def gathers(v, m, cols, tokens):
        made = product.VnmProduct(packed(20, cols, v, m)[1].structure, False)
        return made.gathers(Shape(tokens))

    with torch.no_grad():
        assert gathers("all", 8, 128, 9) and not gathers("all", 8, 128, 8)
        assert not gathers("all", 4, 128, 64) and not gathers(16, 8, 128, 64) and not gathers("all", 8, 120, 64)
    assert not gathers("all", 8, 128, 9)  # gradients are recorded
