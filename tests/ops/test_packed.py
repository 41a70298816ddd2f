"""linear with packed weights: right to the last bit that theory promises, for every size, pattern and regime."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer import native
from gossamer.formats import Condensed, PackedCSR, PackedGroupedNM, PackedNM
from gossamer.ops.packed import _rows

needs_kernels = pytest.mark.skipif(not native.load(), reason="no native kernels here")

CASES = [
    ("90%", PackedCSR()),
    ("90%", PackedCSR(240)),
    ("50%", PackedCSR()),
    ("fan-in 80%", Condensed()),
    ("2:4", PackedNM(2, 4)),
    ("1:20", PackedNM(1, 20)),
    ("1:40", PackedNM(1, 40)),
    ("1:10:g4", PackedGroupedNM(1, 10, 4)),
]
# below, at and above groups (16), windows (30, 32), tiles (128, 240) and blocks (384)
SHAPES = [(1, 1), (16, 32), (17, 31), (33, 129), (400, 127), (48, 500), (385, 64)]
# below, at and above the vectors (4, 8, 16) and panels (32) of every instruction set
TOKENS = [1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65]


def assert_right(out, x, weight, bias=None):
    """|error| <= k u |w||x|: k products and k sums, each rounded once at most."""
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    size = F.linear(x.double().abs(), weight.double().abs(), None if bias is None else bias.double().abs())
    bound = (weight.shape[1] + 2) * 2.0**-24 * size
    assert torch.all((out.double() - exact).abs() <= bound), float(((out.double() - exact).abs() - bound).max())


@needs_kernels
@pytest.mark.parametrize(("how", "format"), CASES, ids=lambda c: str(c))
def test_every_size(how, format):
    for shape in SHAPES:
        dense = gs.sparsify(torch.randn(shape), how, format=gs.Dense())
        weight = gs.from_dense(dense, format)
        bias = torch.randn(shape[0])
        for tokens in TOKENS:
            x = torch.randn(tokens, shape[1])
            with torch.no_grad():
                assert_right(F.linear(x, weight, bias), x, dense, bias)
                if tokens in (1, 17):
                    assert_right(F.linear(x, weight), x, dense)


@needs_kernels
@pytest.mark.parametrize("format", [PackedCSR(), PackedNM(2, 4)], ids=str)
def test_empty_rows_columns_and_tensors(format):
    dense = torch.zeros(40, 72)
    dense[3, 5], dense[39, 71] = 2.0, -1.0
    for weight in (dense, torch.zeros(40, 72), torch.zeros(5, 0), torch.zeros(0, 5)):
        packed = gs.from_dense(weight, format)
        for tokens in (0, 1, 2, 20):
            x = torch.randn(tokens, weight.shape[1])
            assert torch.equal(F.linear(x, packed), x @ weight.t()), (weight.shape, tokens)


@needs_kernels
@pytest.mark.parametrize("format", [PackedCSR(), PackedNM(1, 10)], ids=str)
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_values_that_are_not_finite_stay_where_they_belong(format, tokens):
    dense = gs.sparsify(torch.randn(20, 95), "1:10", format=gs.Dense())
    x = torch.full((tokens, 95), torch.inf)
    expected = torch.stack([torch.where(row != 0, row * torch.inf, 0).sum() for row in dense])
    out = F.linear(x, gs.from_dense(dense, format))
    assert torch.equal(out.nan_to_num(7.0), expected.expand(tokens, 20).nan_to_num(7.0))


@needs_kernels
def test_inputs_of_every_layout():
    dense = gs.sparsify(torch.randn(30, 70), "80%", format=gs.Dense())
    weight = gs.from_dense(dense, PackedCSR())
    wide = torch.randn(9, 141)
    for x in (
        wide[:, 1:71],
        wide[:, ::2][:, :70],
        torch.randn(70, 9).t(),
        torch.randn(1, 70).expand(9, 70),
        torch.randn(3, 2, 70),
        torch.randn(70),
    ):
        assert_right(F.linear(x, weight), x, dense)


@needs_kernels
@pytest.mark.parametrize(("how", "format"), CASES, ids=lambda c: str(c))
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
@pytest.mark.parametrize(("how", "format"), CASES, ids=lambda c: str(c))
def test_gradients_are_those_of_dense(how, format):
    for tokens in (1, 3, 33, 70):
        dense = gs.sparsify(torch.randn(50, 140), how, format=gs.Dense()).requires_grad_()
        weight = gs.from_dense(dense.detach(), format).requires_grad_()
        bias = torch.randn(50, requires_grad=True)
        x, y = torch.randn(tokens, 140, requires_grad=True), torch.randn(tokens, 50)
        gx, gw, gb = torch.autograd.grad(F.linear(x, weight, bias), (x, weight, bias), y)
        dx, dw, db = torch.autograd.grad(F.linear(x, dense, bias), (x, dense, bias), y)
        assert gw.format == format
        assert_right(gx, y, dense.detach().t())
        torch.testing.assert_close(gw.to_dense(), torch.where(weight.mask(), dw, 0), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close((gx, gb), (dx, db), rtol=1e-5, atol=1e-5)


@needs_kernels
def test_gradients_of_gradients():
    weight = gs.sparsify(torch.randn(20, 40), "2:4", format=PackedNM(2, 4))
    arrays, sizes = _rows(weight)
    linear = torch.ops.gossamer.rows_linear

    def both(f):
        values = weight.values().detach().clone().requires_grad_()
        x = torch.randn(6, 40, generator=torch.Generator().manual_seed(1)).requires_grad_()
        first = torch.autograd.grad(f(x, values).pow(3).sum(), (x, values), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, values))

    keys, where = weight.structure.entries()

    def dense(x, values):
        return x @ torch.zeros(800).index_put((keys,), values[where]).view(20, 40).t()

    ours, theirs = both(lambda x, v: linear(*arrays, v, x, None, *sizes, 0)), both(dense)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-2)


@needs_kernels
@pytest.mark.parametrize("format", [PackedCSR(), PackedNM(1, 8)], ids=str)
def test_operators_keep_torchs_rules(format):
    weight = gs.sparsify(torch.randn(20, 40), "1:8", format=format)
    arrays, sizes = _rows(weight)
    values = weight.values().detach().clone().requires_grad_()
    x = torch.randn(5, 40, requires_grad=True)
    bias, grad = torch.randn(20, requires_grad=True), torch.randn(5, 20, requires_grad=True)
    ops = torch.ops.gossamer
    torch.library.opcheck(ops.rows_linear, (*arrays, values, x, bias, *sizes, 0))
    torch.library.opcheck(ops.rows_linear, (*arrays, values, x, None, *sizes, 0))
    torch.library.opcheck(ops.rows_linear_t, (*arrays, values, grad, *sizes))
    torch.library.opcheck(ops.rows_sample, (*arrays, grad, x, *sizes))


@needs_kernels
@pytest.mark.parametrize(("number", "function"), [(1, F.relu), (2, F.gelu), (3, F.silu)])
def test_fused_activations(number, function):
    for format in (PackedCSR(), PackedNM(1, 8)):
        weight = gs.sparsify(torch.randn(37, 40), "1:8", format=format)
        arrays, sizes = _rows(weight)
        for tokens in (1, 9, 40):
            x, bias = torch.randn(tokens, 40), torch.randn(37)
            out = torch.ops.gossamer.rows_forward(*arrays, weight._values, x, bias, *sizes, number)
            torch.testing.assert_close(out, function(F.linear(x, weight, bias)), rtol=1e-6, atol=1e-6)


@needs_kernels
@pytest.mark.parametrize(("number", "function"), [(1, F.relu), (2, F.gelu), (3, F.silu)])
def test_activations_everywhere(number, function):
    """Of all sizes of numbers, to far behind the bend of the curve; a NaN stays one."""
    weight = gs.sparsify(torch.eye(64), gs.Threshold(0.5), format=PackedCSR())
    arrays, sizes = _rows(weight)
    ends = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 50.0, -50.0, 90.0, -90.0, 1e9, -1e9]).repeat(64)
    x = torch.cat([torch.linspace(-12, 12, 64 * 100), torch.linspace(-2, 2, 64 * 100), ends]).view(-1, 64)
    out = torch.ops.gossamer.rows_forward(*arrays, weight._values, x, None, *sizes, number)
    error = (out.double() - function(x.double())).abs()
    assert bool((error <= 2.5e-7 * x.double().abs() + 1e-35).all()), float((error / x.abs()).nan_to_num(0).max())
    nan = torch.full((40, 64), float("nan"))
    assert bool(torch.ops.gossamer.rows_forward(*arrays, weight._values, nan, None, *sizes, number).isnan().all())


@needs_kernels
def test_a_wrong_operand_is_refused():
    weight = gs.sparsify(torch.randn(20, 40), "1:8", format=PackedCSR())
    (row, pos, crd), sizes = _rows(weight)
    x, values = torch.randn(5, 40), weight._values
    forward = torch.ops.gossamer.rows_forward
    for arguments, message in (
        ((row, pos, crd, values, x.double(), None, *sizes, 0), "x must be float32"),
        ((row, pos, crd, values, x[:, :39], None, *sizes, 0), "x must be float32"),
        ((row, pos, crd, values[1:], x, None, *sizes, 0), "values must be float32"),
        ((row, pos, crd, values, x, torch.randn(19), *sizes, 0), "bias must be float32"),
        ((row[1:], pos, crd, values, x, None, *sizes, 0), "row must be int32"),
        ((row, pos, crd[:-16], values, x, None, *sizes, 0), "pos must run"),
        ((None, None, crd, values, x, None, *sizes, 0), "row and pos are needed"),
    ):
        with pytest.raises(RuntimeError, match=message):
            forward(*arguments)


@needs_kernels
@pytest.mark.slow
def test_compile_and_export():
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.ReLU(), torch.nn.Linear(30, 8))
    gs.sparsify_(model, "75%", format=PackedCSR())
    x = torch.randn(6, 40, requires_grad=True)
    expected = model(x)
    (expected_grad,) = torch.autograd.grad(expected.sum(), x)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    out = compiled(x)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], expected_grad)
    program = torch.export.export(model, (x.detach(),))
    torch.testing.assert_close(program.module()(x.detach()), expected)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx2", "baseline"])
def test_older_instruction_sets(isa):
    import os

    code = "import sys, pytest; sys.exit(pytest.main(['-q', '-x', '-p', 'no:cacheprovider', *sys.argv[1:]]))"
    tests = [
        "test_every_size",
        "test_values_that_are_not_finite_stay_where_they_belong",
        "test_gradients_are_those_of_dense",
    ]
    command = [sys.executable, "-c", code, *(f"{__file__}::{name}" for name in tests)]
    answer = subprocess.run(command, env={**os.environ, "GOSSAMER_ISA": isa}, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout[-3000:]


@needs_kernels
@pytest.mark.parametrize("arguments", [{}, {"stride": 2, "padding": 1}, {"padding": "same"}, {"dilation": 2}], ids=str)
@pytest.mark.parametrize("kernel", [1, 3])
def test_convolution(arguments, kernel):
    dense = gs.sparsify(torch.randn(20, 8, kernel, kernel), "1:8", format=gs.Dense()).requires_grad_()
    weight = gs.from_dense(dense.detach(), PackedCSR()).requires_grad_()
    x, bias = torch.randn(2, 8, 9, 7, requires_grad=True), torch.randn(20, requires_grad=True)
    ours, theirs = F.conv2d(x, weight, bias, **arguments), F.conv2d(x, dense, bias, **arguments)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    grad = torch.randn_like(ours)
    gx, gw, gb = torch.autograd.grad(ours, (x, weight, bias), grad)
    dx, dw, db = torch.autograd.grad(theirs, (x, dense, bias), grad)
    torch.testing.assert_close((gx, gb), (dx, db), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gw.to_dense(), torch.where(weight.mask(), dw, 0), rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format", [PackedCSR(), PackedNM(1, 8)], ids=str)
def test_half_precision_is_stored_and_sums_are_float32(dtype, format):
    dense = gs.sparsify(torch.randn(30, 80), "1:8", format=gs.Dense()).to(dtype)
    weight = gs.from_dense(dense, format).requires_grad_()
    bias, grad = torch.randn(30, dtype=dtype), torch.randn(9, 30, dtype=dtype)
    x = torch.randn(9, 80, dtype=dtype, requires_grad=True)
    out = F.linear(x, weight, bias)
    assert torch.equal(out, F.linear(x.float(), weight.float(), bias.float()).to(dtype))
    gx, gw = torch.autograd.grad(out, (x, weight), grad)
    assert gx.dtype == gw.dtype == dtype and gw.format == format
    torch.testing.assert_close(gx.float(), grad.float() @ dense.float(), rtol=2e-2, atol=2e-2)


@needs_kernels
@pytest.mark.parametrize(
    "format", [PackedCSR(), PackedCSR(240), PackedNM(1, 8), gs.BSR((4, 4)), gs.BSR((1, 8))], ids=str
)
def test_bfloat16_at_every_size(format):
    """The kernel reads the values as they are, sums in float32 and rounds once; in chunks from 257 tokens on."""
    how = "block {}x{} 50%".format(*format.block) if isinstance(format, gs.BSR) else "1:8"
    for shape in ((1, 1), (37, 131), (130, 300)):
        dense = gs.sparsify(torch.randn(shape), how, format=gs.Dense()).bfloat16()
        weight, bias = gs.from_dense(dense, format), torch.randn(shape[0]).bfloat16()
        for tokens in (0, 1, 2, 4, 5, 17, 33, 256, 257, 300):
            x = torch.randn(tokens, 2 * shape[1])[:, : shape[1]].bfloat16()
            with torch.no_grad():
                out = F.linear(x, weight, bias)
                exact = F.linear(x.double(), dense.double(), bias.double())
            assert out.dtype is torch.bfloat16 and out.shape == exact.shape
            size = F.linear(x.double().abs(), dense.double().abs(), bias.double().abs())
            bound = 2.0**-8 * exact.abs() + (shape[1] + 2) * 2.0**-24 * size * 1.01
            assert torch.all((out.double() - exact).abs() <= bound)


@needs_kernels
@pytest.mark.parametrize("format", [PackedCSR(), PackedNM(1, 8), gs.BSR((4, 4))], ids=str)
def test_bfloat16_gradients_and_rules(format):
    dense = gs.sparsify(torch.randn(32, 80), "block 4x8 75%", format=gs.Dense()) if isinstance(format, gs.BSR) else None
    dense = gs.sparsify(torch.randn(32, 80), "1:8", format=gs.Dense()) if dense is None else dense
    weight = gs.from_dense(dense.bfloat16(), format).requires_grad_()
    x, grad = torch.randn(9, 80).bfloat16().requires_grad_(), torch.randn(9, 32).bfloat16()
    gx, gw = torch.autograd.grad(F.linear(x, weight), (x, weight), grad)
    assert gx.dtype is gw.dtype is torch.bfloat16 and gw.format == format
    torch.testing.assert_close(gx.float(), grad.float() @ weight.detach().to_dense().float(), rtol=2e-2, atol=2e-2)
    expected = torch.where(weight.mask(), grad.float().t() @ x.detach().float(), 0)
    torch.testing.assert_close(gw.to_dense().float(), expected, rtol=2e-2, atol=2e-2)
    arrays, sizes = _rows(weight)
    values = weight.values().detach().clone().requires_grad_()
    op = torch.ops.gossamer.blocks_linear if isinstance(format, gs.BSR) else torch.ops.gossamer.rows_linear
    bias = torch.randn(32).bfloat16().requires_grad_()
    torch.library.opcheck(op, (*arrays, values, x, bias, *sizes, 0), rtol=2e-2, atol=2e-2)
    with pytest.raises(RuntimeError, match="bfloat16 if values are"):
        op(*arrays, values, x.float(), None, *sizes, 0)


@pytest.mark.parametrize("format", [PackedCSR(), PackedNM(1, 8)], ids=str)
def test_gradcheck(format):
    """In float64, where there is no kernel: the formats themselves differentiate as any other."""
    weight = gs.sparsify(torch.randn(6, 16, dtype=torch.float64), "1:8", format=format)
    values = weight.values().detach().clone().requires_grad_()
    x = torch.randn(3, 16, dtype=torch.float64, requires_grad=True)
    _, where = weight.structure.entries()

    def function(x, values):
        from gossamer.tensor import build

        kept = torch.zeros_like(values).index_put((where,), values[where])
        return F.linear(x, build(kept, weight.structure))

    assert torch.autograd.gradcheck(function, (x, values))


@needs_kernels
def test_matrix_products():
    dense = gs.sparsify(torch.randn(30, 70), "1:10", format=gs.Dense())
    for weight in (gs.from_dense(dense, PackedCSR()), gs.from_dense(dense, PackedNM(1, 10))):
        for x in (torch.randn(70), torch.randn(70, 1), torch.randn(70, 9), torch.randn(9, 70).t()):
            assert_right((weight @ x).t(), x.t(), dense)
            assert (weight @ x).shape == (dense @ x).shape


def test_without_kernels_it_still_works(monkeypatch):
    monkeypatch.setattr("gossamer.ops.packed.available", lambda values: False)
    dense = gs.sparsify(torch.randn(30, 70), "1:10", format=gs.Dense())
    for format in (PackedCSR(), PackedNM(1, 10)):
        weight = gs.from_dense(dense, format).requires_grad_()
        x = torch.randn(4, 70, requires_grad=True)
        out = F.linear(x, weight)
        torch.testing.assert_close(out, x @ dense.t())
        assert torch.autograd.grad(out.sum(), weight)[0].format == format
