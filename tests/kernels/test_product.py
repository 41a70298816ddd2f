"""linear with packed weights and with blocks: right to the last bit that theory promises, for every format and size."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer import native
from gossamer.core.join import build
from gossamer.formats import Condensed, PackedCSR, PackedGroupedNM, PackedNear, PackedNM
from gossamer.kernels.blocks.operators import blocks_of
from gossamer.kernels.rows.operators import rows_of

needs_kernels = pytest.mark.skipif(not native.load(), reason="no native kernels here")

PACKED = [
    ("90%", PackedCSR()),
    ("90%", PackedCSR(240)),
    ("50%", PackedCSR()),
    ("50%", PackedNear()),
    ("95%", PackedNear()),
    ("fan-in 80%", Condensed()),
    ("2:4", PackedNM(2, 4)),
    ("1:20", PackedNM(1, 20)),
    ("1:40", PackedNM(1, 40)),
    ("1:10:g4", PackedGroupedNM(1, 10, 4)),
    ("3:5", PackedNM(3, 5)),
]
SIZES = [(4, 4), (8, 8), (16, 16), (32, 32), (1, 4), (1, 16), (2, 8), (4, 1), (1, 1), (3, 5), (6, 12), (70, 8)]
BLOCKS = [(f"block {h}x{w} 50%", gs.BSR((h, w))) for h, w in SIZES]
ALL, FEW = [*PACKED, *BLOCKS], [*PACKED, BLOCKS[0], BLOCKS[5], BLOCKS[9]]
# below, at and above groups (16), windows (10, 12, 15, 32), tiles (128, 240, 264) and blocks of rows (64, 384)
SHAPES = [(1, 1), (4, 4), (16, 32), (17, 31), (33, 129), (65, 129), (400, 127), (48, 500), (385, 64)]
# below, at and above the vectors (4, 8, 16), windows (14, 24) and panels (8, 16, 32) of every instruction set
TOKENS = [1, 2, 3, 4, 5, 8, 9, 14, 15, 16, 17, 24, 25, 31, 32, 33, 64, 65]


def case(cases):
    return pytest.mark.parametrize(("how", "format"), cases, ids=lambda c: str(c))


def pair(shape, how, format):
    """A weight as a dense tensor, and in the format."""
    dense = gs.sparsify(torch.randn(shape), how, format=gs.Dense())
    return dense, gs.from_dense(dense, format)


def assert_right(out, x, weight, bias=None):
    """|error| <= k u |w||x|: k products and k sums, each rounded once at most."""
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    size = F.linear(x.double().abs(), weight.double().abs(), None if bias is None else bias.double().abs())
    bound = (weight.shape[1] + 2) * 2.0**-24 * size
    assert torch.all((out.double() - exact).abs() <= bound), float(((out.double() - exact).abs() - bound).max())


@needs_kernels
@case(ALL)
def test_every_size(how, format):
    for shape in SHAPES:
        dense, weight = pair(shape, how, format)
        bias = torch.randn(shape[0])
        for tokens in TOKENS:
            x = torch.randn(tokens, shape[1])
            with torch.no_grad():
                assert_right(F.linear(x, weight, bias), x, dense, bias)
                if tokens in (1, 17):
                    assert_right(F.linear(x, weight), x, dense)


@needs_kernels
@pytest.mark.parametrize("format", [PackedCSR(), PackedNear(), PackedNM(2, 4), gs.BSR((4, 4)), gs.BSR((3, 5))], ids=str)
def test_empty_rows_columns_and_tensors(format):
    dense = torch.zeros(40, 72)
    dense[3, 5], dense[39, 71] = 2.0, -1.0
    for weight in (dense, torch.zeros(40, 72), torch.zeros(5, 0), torch.zeros(0, 5)):
        packed = gs.from_dense(weight, format)
        for tokens in (0, 1, 2, 16, 20, 40):
            x = torch.randn(tokens, weight.shape[1])
            assert torch.equal(F.linear(x, packed), x @ weight.t()), (weight.shape, tokens)


@needs_kernels
@case([PACKED[0], PACKED[6], BLOCKS[0]])
def test_inputs_of_every_layout(how, format):
    dense, weight = pair((30, 70), how, format)
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
@case(FEW)
@pytest.mark.parametrize("tokens", [1, 7, 40, 200])
def test_threads_change_no_bit(how, format, tokens):
    weight = gs.sparsify(torch.randn(800, 300), how, format=format).requires_grad_()
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
@case(ALL)
def test_gradients_are_those_of_dense(how, format):
    for tokens in (1, 3, 33, 70):
        dense, weight = pair((50, 140), how, format)
        dense.requires_grad_(), weight.requires_grad_()
        bias = torch.randn(50, requires_grad=True)
        x, y = torch.randn(tokens, 140, requires_grad=True), torch.randn(tokens, 50)
        gx, gw, gb = torch.autograd.grad(F.linear(x, weight, bias), (x, weight, bias), y)
        dx, dw, db = torch.autograd.grad(F.linear(x, dense, bias), (x, dense, bias), y)
        assert gw.format == format
        assert_right(gx, y, dense.detach().t())
        exact, size = y.double().t() @ x.detach().double(), y.double().abs().t() @ x.detach().double().abs()
        wrong = (gw.to_dense().double() - exact).abs() > (tokens + 2) * 2.0**-24 * size
        assert not bool((wrong & weight.mask()).any())
        torch.testing.assert_close(gw.to_dense(), torch.where(weight.mask(), dw, 0), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close((gx, gb), (dx, db), rtol=1e-5, atol=1e-5)


@needs_kernels
@case([("2:4", PackedNM(2, 4)), ("50%", PackedNear()), ("block 4x8 50%", gs.BSR((4, 8)))])
def test_gradients_of_gradients(how, format):
    _, weight = pair((20, 40), how, format)
    arrays, sizes = (blocks_of if isinstance(format, gs.BSR) else rows_of)(weight.structure)
    keys, where = weight.structure.entries()
    linear = torch.ops.gossamer.blocks_linear if isinstance(format, gs.BSR) else torch.ops.gossamer.rows_linear

    def both(f, dtype):
        values = weight.values().detach().to(dtype, copy=True).requires_grad_()
        x = torch.randn(6, 40, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
        first = torch.autograd.grad(f(x, values).pow(3).sum(), (x, values), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, values))

    def dense(x, values):
        kept = values.reshape(-1) if where is None else values.reshape(-1)[where]
        return x @ torch.zeros(800, dtype=x.dtype).index_put((keys,), kept).view(20, 40).t()

    ours = both(lambda x, v: linear(*arrays, v, x, None, *sizes, 0), torch.float32)
    for a, b in zip(ours, both(dense, torch.float64), strict=True):
        # sums of sums, whose terms cancel: the error is one of the largest of them
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2.0**-18 * float(b.abs().max()))


@case([("1:8", PackedCSR()), ("1:8", PackedNear()), ("1:8", PackedNM(1, 8)), ("block 4x4 50%", gs.BSR((4, 4)))])
def test_gradcheck(how, format):
    """In float64, where there is no kernel: the formats themselves differentiate as any other."""
    weight = gs.sparsify(torch.randn(8, 16, dtype=torch.float64), how, format=format)
    values = weight.values().detach().clone().requires_grad_()
    x = torch.randn(3, 16, dtype=torch.float64, requires_grad=True)
    _, where = weight.structure.entries()

    def function(x, values):
        kept = values if where is None else torch.zeros_like(values).index_put((where,), values[where])
        return F.linear(x, build(kept, weight.structure))

    assert torch.autograd.gradcheck(function, (x, values))


@needs_kernels
@case([("1:8", PackedCSR()), ("1:8", PackedNM(1, 8)), BLOCKS[0], BLOCKS[9]])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_fused_activations(activation, how, format):
    _, weight = pair((37, 40), how, format)
    for tokens in (1, 9, 16, 40):
        x, bias = torch.randn(tokens, 40), torch.randn(37)
        out = gs.linear(x, weight, bias, activation)
        torch.testing.assert_close(out, getattr(F, activation)(F.linear(x, weight, bias)), rtol=1e-6, atol=1e-6)


@needs_kernels
@pytest.mark.slow
@case([("75%", PackedCSR()), ("50%", PackedNear()), ("2:4", PackedNM(2, 4)), BLOCKS[0]])
def test_compile_and_export(how, format):
    model = torch.nn.Sequential(torch.nn.Linear(40, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    gs.sparsify_(model, how, format=format)
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
    here = Path(__file__).parent
    files = [__file__, str(here / "rows" / "test_product.py"), str(here / "blocks" / "test_product.py")]
    command = [sys.executable, "-c", code, *files, "-k", " or ".join(tests)]
    answer = subprocess.run(command, env={**os.environ, "GOSSAMER_ISA": isa}, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout[-3000:]


@needs_kernels
@case([("1:8", PackedCSR()), ("1:8", PackedNM(1, 8)), BLOCKS[0]])
@pytest.mark.parametrize("arguments", [{}, {"stride": 2, "padding": 1}, {"padding": "same"}, {"dilation": 2}], ids=str)
@pytest.mark.parametrize("kernel", [1, 3])
def test_convolution(arguments, kernel, how, format):
    dense, weight = pair((20, 8, kernel, kernel), how, format)
    dense.requires_grad_(), weight.requires_grad_()
    x, bias = torch.randn(2, 8, 9, 7, requires_grad=True), torch.randn(20, requires_grad=True)
    ours, theirs = F.conv2d(x, weight, bias, **arguments), F.conv2d(x, dense, bias, **arguments)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(ours)
    gx, gw, gb = torch.autograd.grad(ours, (x, weight, bias), grad)
    dx, dw, db = torch.autograd.grad(theirs, (x, dense, bias), grad)
    torch.testing.assert_close((gx, gb), (dx, db), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gw.to_dense(), torch.where(weight.mask(), dw, 0), rtol=1e-4, atol=1e-4)


@case([("1:10", PackedCSR()), ("1:10", PackedNear()), ("1:10", PackedNM(1, 10)), BLOCKS[0]])
def test_without_kernels_it_still_works(monkeypatch, how, format):
    monkeypatch.setattr("gossamer.native.loaded", lambda: False)
    dense, weight = pair((30, 70), how, format)
    weight.requires_grad_()
    x = torch.randn(4, 70, requires_grad=True)
    out = F.linear(x, weight)
    torch.testing.assert_close(out, x @ dense.t())
    assert torch.autograd.grad(out.sum(), weight)[0].format == format
