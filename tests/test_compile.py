"""torch.compile (one graph), torch.export, and torch's own checks of our operators."""

import io

import pytest
import torch
from torch import nn

import gossamer as gs

FORMATS = [gs.CSR(), gs.CSC(), gs.COO(), gs.DCSR(), gs.CSF(), gs.BSR((2, 4)), gs.ELL(), gs.Masked()]
formats = pytest.mark.parametrize("format", FORMATS, ids=repr)


def network(format):
    """Two sparse layers."""
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    return gs.sparsify_(model, "80%", format=format)


def gradients(model, f, x):
    """Output and gradients of one pass."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    out = f(x)
    out.square().sum().backward()
    return out.detach(), [x.grad] + [p.grad for p in model.parameters()]


def check_compiled(model, backend):
    torch._dynamo.reset()
    compiled, x = torch.compile(model, fullgraph=True, backend=backend), torch.randn(5, 16)
    expected, grads = gradients(model, model, x)
    got, compiled_grads = gradients(model, compiled, x)
    torch.testing.assert_close(got, expected)
    for a, b in zip(compiled_grads, grads, strict=True):
        assert type(a) is type(b)
        dense = [g.to_dense() if isinstance(g, gs.SparseTensor) else g for g in (a, b)]
        torch.testing.assert_close(*dense)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), expected)


@formats
def test_compile_in_one_graph_forward_and_backward(format):
    check_compiled(network(format), "aot_eager")


def test_compile_with_inductor():
    check_compiled(network(gs.CSR()), "inductor")


def test_compiled_models_see_weight_updates():
    torch._dynamo.reset()
    model = network(gs.CSR())
    compiled, x = torch.compile(model, fullgraph=True, backend="aot_eager"), torch.randn(5, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        compiled(x).square().sum().backward()
        optimizer.step()
        torch.testing.assert_close(compiled(x), model(x))


@formats
def test_export(format):
    model, x = network(format), torch.randn(5, 16)
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x))


def test_exported_programs_save_and_load():
    model, x = network(gs.CSR()).requires_grad_(False), torch.randn(5, 16)
    program = torch.export.export(model, (x,)).run_decompositions()
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    loaded = torch.export.load(io.BytesIO(buffer.getvalue()))
    torch.testing.assert_close(loaded.module()(x), model(x))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tokens_first", [False, True])
def test_spmm_passes_torch_s_checks(transposed, tokens_first):
    matrix = gs.sparsify(torch.randn(12, 10, dtype=torch.float64), "70%").structure.matrix()
    x = torch.randn(12 if transposed else 10, 4, dtype=torch.float64, requires_grad=True)
    values = torch.randn(matrix.crd.numel(), dtype=torch.float64, requires_grad=True)

    def f(values, x):
        return torch.ops.gossamer.spmm(matrix.pos, matrix.crd, values, 12, 10, transposed, x, tokens_first)

    torch.library.opcheck(
        torch.ops.gossamer.spmm.default, (matrix.pos, matrix.crd, values, 12, 10, transposed, x, tokens_first)
    )
    assert torch.autograd.gradcheck(f, (values, x))
    assert torch.autograd.gradgradcheck(f, (values, x))


def test_sddmm_passes_torch_s_checks():
    matrix = gs.sparsify(torch.randn(12, 10, dtype=torch.float64), "70%").structure.matrix()
    left = torch.randn(12, 3, dtype=torch.float64, requires_grad=True)
    right = torch.randn(10, 3, dtype=torch.float64, requires_grad=True)
    arguments = (matrix.pos, matrix.crd, 12, 10, left, right)
    torch.library.opcheck(torch.ops.gossamer.sddmm.default, arguments)
    assert torch.autograd.gradcheck(lambda a, b: torch.ops.gossamer.sddmm(*arguments[:4], a, b), (left, right))
