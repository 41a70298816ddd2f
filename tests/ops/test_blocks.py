"""linear with a weight of blocks: right to the last bit that theory promises, for every block, size and regime."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer import native
from gossamer.ops.packed import _rows
from tests.ops.test_packed import assert_right

needs_kernels = pytest.mark.skipif(not native.load(), reason="no native kernels here")

BLOCKS = [(4, 4), (8, 8), (16, 16), (32, 32), (1, 4), (1, 16), (2, 8), (4, 1), (1, 1), (3, 5), (6, 12), (70, 8)]
# below, at and above blocks, vectors and the 64 rows of an item
SHAPES = [(1, 1), (4, 4), (16, 32), (17, 31), (64, 64), (65, 129), (130, 50)]
# below, at and above the switch (4), the vectors (4, 8, 16) and panels (8, 16, 32) of every instruction set
TOKENS = [1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33, 65]


def pair(shape, block, sparsity="50%"):
    dense = gs.sparsify(torch.randn(shape), f"block {block[0]}x{block[1]} {sparsity}", format=gs.Dense())
    return dense, gs.from_dense(dense, gs.BSR(block))


@needs_kernels
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_size(block):
    for shape in SHAPES:
        dense, weight = pair(shape, block)
        bias = torch.randn(shape[0])
        for tokens in TOKENS:
            x = torch.randn(tokens, shape[1])
            with torch.no_grad():
                assert_right(F.linear(x, weight, bias), x, dense, bias)
                if tokens in (1, 17):
                    assert_right(F.linear(x, weight), x, dense)


@needs_kernels
@pytest.mark.parametrize("block", [(4, 4), (3, 5)], ids=str)
def test_empty_rows_columns_and_tensors(block):
    dense = torch.zeros(40, 72)
    dense[3, 5], dense[39, 71] = 2.0, -1.0
    for weight in (dense, torch.zeros(40, 72), torch.zeros(5, 0), torch.zeros(0, 5)):
        packed = gs.from_dense(weight, gs.BSR(block))
        for tokens in (0, 1, 2, 20):
            x = torch.randn(tokens, weight.shape[1])
            assert torch.equal(F.linear(x, packed), x @ weight.t()), (weight.shape, tokens)


@needs_kernels
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_values_that_are_not_finite_stay_where_they_belong(tokens):
    """Neither the padding of the last blocks nor rows without a block let an infinity through."""
    dense = torch.zeros(10, 11)
    dense[4:8, 8:] = 1.0
    x, grad = torch.full((tokens, 11), torch.inf), torch.full((tokens, 10), torch.inf)
    weight = gs.from_dense(dense, gs.BSR((4, 4))).requires_grad_()
    out = F.linear(x, weight)
    assert torch.equal(out, torch.where(torch.arange(10) // 4 == 1, torch.inf, 0.0).expand(tokens, 10))
    values = torch.autograd.grad(out, weight, grad)[0]._values
    assert torch.equal(values[0, :, 3], torch.zeros(4)) and torch.all(values[0, :, :3] == torch.inf)


@needs_kernels
def test_inputs_of_every_layout():
    dense, weight = pair((30, 70), (4, 4))
    wide = torch.randn(9, 141)
    for x in (
        wide[:, 1:71],
        wide[:, ::2][:, :70],
        wide[:3, 1:71],
        torch.randn(70, 9).t(),
        torch.randn(1, 70).expand(9, 70),
        torch.randn(3, 2, 70),
        torch.randn(70),
    ):
        assert_right(F.linear(x, weight), x, dense)


@needs_kernels
@pytest.mark.parametrize("block", [(4, 4), (1, 16), (3, 5)], ids=str)
@pytest.mark.parametrize("tokens", [1, 7, 40, 200])
def test_threads_change_no_bit(block, tokens):
    weight = pair((800, 300), block, "80%")[1].requires_grad_()
    x = torch.randn(tokens, 300, requires_grad=True)

    def run(threads):
        torch.set_num_threads(threads)
        out = F.linear(x, weight)
        return out, *torch.autograd.grad(out.square().sum(), (x, weight))

    try:
        for one, two in zip(run(1), run(2), strict=True):
            one, two = (t.values() if isinstance(t, gs.SparseTensor) else t for t in (one, two))
            assert torch.equal(one, two)
    finally:
        torch.set_num_threads(1)


@needs_kernels
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_gradients_are_those_of_dense(block):
    for tokens in (1, 3, 33, 70):
        dense, weight = pair((50, 140), block)
        dense.requires_grad_(), weight.requires_grad_()
        bias = torch.randn(50, requires_grad=True)
        x, y = torch.randn(tokens, 140, requires_grad=True), torch.randn(tokens, 50)
        gx, gw, gb = torch.autograd.grad(F.linear(x, weight, bias), (x, weight, bias), y)
        dx, dw, db = torch.autograd.grad(F.linear(x, dense, bias), (x, dense, bias), y)
        assert gw.format == gs.BSR(block)
        assert_right(gx, y, dense.detach().t())
        torch.testing.assert_close(gw.to_dense(), torch.where(weight.mask(), dw, 0), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close((gx, gb), (dx, db), rtol=1e-5, atol=1e-5)


@needs_kernels
def test_gradients_of_gradients():
    _, weight = pair((20, 40), (4, 8))
    (pos, crd), sizes = _rows(weight)
    keys, _ = weight.structure.entries()

    def both(f):
        values = weight.values().detach().clone().requires_grad_()
        x = torch.randn(6, 40, generator=torch.Generator().manual_seed(1)).requires_grad_()
        first = torch.autograd.grad(f(x, values).pow(3).sum(), (x, values), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, values))

    ours = both(lambda x, v: torch.ops.gossamer.blocks_linear(pos, crd, v, x, None, *sizes, 0))
    theirs = both(lambda x, v: x @ torch.zeros(800).index_put((keys,), v.reshape(-1)).view(20, 40).t())
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-2)


@needs_kernels
def test_operators_keep_torchs_rules():
    weight = pair((22, 40), (4, 4))[1]
    arrays, sizes = _rows(weight)
    values = weight.values().detach().clone().requires_grad_()
    x, bias = torch.randn(5, 40, requires_grad=True), torch.randn(22, requires_grad=True)
    grad, ops = torch.randn(5, 22, requires_grad=True), torch.ops.gossamer
    torch.library.opcheck(ops.blocks_linear, (*arrays, values, x, bias, *sizes, 0))
    torch.library.opcheck(ops.blocks_linear, (*arrays, values, x, None, *sizes, 0))
    torch.library.opcheck(ops.blocks_linear_t, (*arrays, values, grad, *sizes))
    torch.library.opcheck(ops.blocks_sample, (*arrays, grad, x, *sizes, 4, 4))


def test_gradcheck():
    """In float64, where there is no kernel: the format itself differentiates as any other."""
    from gossamer.tensor import build

    weight = gs.from_dense(pair((8, 12), (4, 4))[0].double(), gs.BSR((4, 4)))
    values = weight.values().detach().clone().requires_grad_()
    x = torch.randn(3, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, v: F.linear(x, build(v, weight.structure)), (x, values))


@needs_kernels
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_fused_activations(activation):
    function = getattr(F, activation)
    for block in ((4, 4), (3, 5)):
        _, weight = pair((37, 40), block)
        for tokens in (1, 9, 40):
            x, bias = torch.randn(tokens, 40), torch.randn(37)
            out = gs.linear(x, weight, bias, activation)
            torch.testing.assert_close(out, function(F.linear(x, weight, bias)), rtol=1e-6, atol=1e-6)


@needs_kernels
def test_a_wrong_operand_is_refused():
    weight = pair((20, 40), (4, 4))[1]
    (pos, crd), sizes = _rows(weight)
    x, values = torch.randn(5, 40), weight._values
    for arguments, message in (
        ((pos, crd, values, x.double(), None, *sizes, 0), "x must be float32"),
        ((pos, crd, values, x[:, :39], None, *sizes, 0), "x must be float32"),
        ((pos, crd, values[1:], x, None, *sizes, 0), "as many blocks"),
        ((pos, crd, values.flatten(), x, None, *sizes, 0), "values must be float32"),
        ((pos, crd, values.transpose(1, 2), x, None, *sizes, 0), "values must be float32"),
        ((pos, crd, values, x, torch.randn(19), *sizes, 0), "bias must be float32"),
        ((pos[1:], crd, values, x, None, *sizes, 0), "pos must be int32"),
        ((pos, crd.long(), values, x, None, *sizes, 0), "crd must be int32"),
        ((pos, crd[:-1], values[:-1], x, None, *sizes, 0), "pos must run"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.ops.gossamer.blocks_forward(*arguments)


@needs_kernels
@pytest.mark.slow
def test_compile_and_export():
    model = torch.nn.Sequential(torch.nn.Linear(40, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    gs.sparsify_(model, "block 4x4 50%")
    x = torch.randn(6, 40, requires_grad=True)
    expected = model(x)
    (expected_grad,) = torch.autograd.grad(expected.sum(), x)
    out = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], expected_grad)
    program = torch.export.export(model, (x.detach(),))
    torch.testing.assert_close(program.module()(x.detach()), expected)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", "baseline"])
def test_older_instruction_sets(isa):
    code = "import sys, pytest; sys.exit(pytest.main(['-q', '-x', '-p', 'no:cacheprovider', *sys.argv[1:]]))"
    tests = ["test_every_size", "test_values_that_are_not_finite", "test_gradients_are_those_of_dense"]
    command = [sys.executable, "-c", code, __file__, "-k", " or ".join(tests)]
    answer = subprocess.run(command, env={**os.environ, "GOSSAMER_ISA": isa}, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout[-3000:]


@needs_kernels
@pytest.mark.parametrize("arguments", [{}, {"stride": 2, "padding": 1}, {"padding": "same"}, {"dilation": 2}], ids=str)
@pytest.mark.parametrize("kernel", [1, 3])
def test_convolution(arguments, kernel):
    dense, weight = pair((20, 8, kernel, kernel), (4, 4))
    dense.requires_grad_(), weight.requires_grad_()
    x, bias = torch.randn(2, 8, 9, 7, requires_grad=True), torch.randn(20, requires_grad=True)
    ours, theirs = F.conv2d(x, weight, bias, **arguments), F.conv2d(x, dense, bias, **arguments)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(ours)
    gx, gw, gb = torch.autograd.grad(ours, (x, weight, bias), grad)
    dx, dw, db = torch.autograd.grad(theirs, (x, dense, bias), grad)
    torch.testing.assert_close((gx, gb), (dx, db), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gw.to_dense(), torch.where(weight.mask(), dw, 0), rtol=1e-4, atol=1e-4)


@needs_kernels
def test_products_either_way_round():
    dense, weight = pair((30, 70), (4, 8))
    for x in (torch.randn(70), torch.randn(70, 1), torch.randn(70, 9), torch.randn(9, 70).t()):
        assert_right((weight @ x).t(), x.t(), dense)
        assert (weight @ x).shape == (dense @ x).shape
    turned = weight.t()  # blocks of 8x4 with their inputs first, as a Conv1D of transformers has them
    assert turned.format.order == (1, 0)
    for x in (torch.randn(9, 70), torch.randn(2, 3, 70)):
        assert_right(x @ turned, x, dense)
    bias = torch.randn(30)
    assert_right(torch.addmm(bias, torch.ones(5, 70), turned), torch.ones(5, 70), dense, bias)


def test_without_kernels_it_still_works(monkeypatch):
    monkeypatch.setattr("gossamer.ops.packed.available", lambda values: False)
    dense, weight = pair((30, 70), (4, 4))
    weight.requires_grad_()
    x = torch.randn(4, 70, requires_grad=True)
    out = F.linear(x, weight)
    torch.testing.assert_close(out, x @ dense.t())
    assert torch.autograd.grad(out.sum(), weight)[0].format == weight.format
