"""Packed weights: what is theirs alone. What they share with blocks stands in tests/kernels/test_product.py."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer import native
from gossamer.formats import PackedCSR, PackedNear, PackedNM
from gossamer.kernels.blocks.operators import blocks_of
from gossamer.kernels.rows.operators import rows_of
from gossamer.kernels.rows.product import RowsProduct
from tests.kernels.test_product import assert_right

needs_kernels = pytest.mark.skipif(not native.load(), reason="no native kernels here")


@needs_kernels
@pytest.mark.parametrize("format", [PackedCSR(), PackedNear(), PackedNM(1, 10)], ids=str)
@pytest.mark.parametrize("tokens", [1, 5, 16, 40])
def test_values_that_are_not_finite_stay_where_they_belong(format, tokens):
    dense = gs.sparsify(torch.randn(20, 95), "1:10", format=gs.Dense())
    x = torch.full((tokens, 95), torch.inf)
    expected = torch.stack([torch.where(row != 0, row * torch.inf, 0).sum() for row in dense])
    out = F.linear(x, gs.from_dense(dense, format))
    assert torch.equal(out.nan_to_num(7.0), expected.expand(tokens, 20).nan_to_num(7.0))


@needs_kernels
@pytest.mark.parametrize("format", [PackedCSR(), PackedNear(), PackedNM(1, 8)], ids=str)
def test_operators_keep_torchs_rules(format):
    weight = gs.sparsify(torch.randn(20, 40), "1:8", format=format)
    arrays, sizes = rows_of(weight.structure)
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
def test_activations_everywhere(number, function):
    """Of all sizes of numbers, to far behind the bend of the curve; a NaN stays one."""
    weight = gs.sparsify(torch.eye(64), gs.Threshold(0.5), format=PackedCSR())
    arrays, sizes = rows_of(weight.structure)
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
    (row, pos, crd), sizes = rows_of(weight.structure)
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
    "format", [PackedCSR(), PackedNear(), PackedCSR(240), PackedNM(1, 8), gs.BSR((4, 4)), gs.BSR((1, 8))], ids=str
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
    arrays, sizes = (blocks_of if isinstance(format, gs.BSR) else rows_of)(weight.structure)
    values = weight.values().detach().clone().requires_grad_()
    op = torch.ops.gossamer.blocks_linear if isinstance(format, gs.BSR) else torch.ops.gossamer.rows_linear
    bias = torch.randn(32).bfloat16().requires_grad_()
    torch.library.opcheck(op, (*arrays, values, x, bias, *sizes, 0), rtol=2e-2, atol=2e-2)
    with pytest.raises(RuntimeError, match="bfloat16 if values are"):
        op(*arrays, values, x.float(), None, *sizes, 0)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_results(dtype):
    """Above 32 MB: in pages of 2 MB."""
    weight = gs.sparsify(torch.randn(256, 20), "1:10", format=PackedNM(1, 10)).to(dtype)
    x = torch.randn(70_000, 20, dtype=dtype)
    with torch.no_grad():
        out = F.linear(x, weight)
    assert out.nbytes > 32 << 20
    for part in (slice(50), slice(-50, None)):
        torch.testing.assert_close(out[part], (x[part].double() @ weight.to_dense().double().t()).to(dtype))


@needs_kernels
def test_matrix_products():
    dense = gs.sparsify(torch.randn(30, 70), "1:10", format=gs.Dense())
    for weight in (gs.from_dense(dense, PackedCSR()), gs.from_dense(dense, PackedNM(1, 10))):
        for x in (torch.randn(70), torch.randn(70, 1), torch.randn(70, 9), torch.randn(9, 70).t()):
            assert_right((weight @ x).t(), x.t(), dense)
            assert (weight @ x).shape == (dense @ x).shape


@needs_kernels
@pytest.mark.parametrize("format", [PackedCSR(), PackedNear(), PackedNM(1, 8)], ids=str)
def test_registered_rows_multiply_as_their_arrays_do(format):
    weight = gs.sparsify(torch.randn(20, 40), "1:8", format=format)
    arrays, sizes = rows_of(weight.structure)
    values, bias = weight.values().detach(), torch.randn(20)
    number = torch.ops.gossamer.rows_register(*arrays, *sizes)
    for x in (torch.randn(40), torch.randn(3, 40), torch.randn(2, 5, 40)):
        out = torch.ops.gossamer.rows_registered(values, x, bias, number, 20, 1)
        assert torch.equal(out, torch.ops.gossamer.rows_forward(*arrays, values, x, bias, *sizes, 1))
    torch.library.opcheck(torch.ops.gossamer.rows_registered, (values, torch.randn(3, 40), bias, number, 20, 0))
    native.forget(number)
    with pytest.raises(RuntimeError, match="no rows have this number"):
        torch.ops.gossamer.rows_registered(values, torch.randn(40), bias, number, 20, 0)


@needs_kernels
def test_numbers_and_rows_that_do_not_fit_are_errors():
    weight = gs.sparsify(torch.randn(20, 40), "1:8", format=PackedNM(1, 8))
    arrays, sizes = rows_of(weight.structure)
    number = torch.ops.gossamer.rows_register(*arrays, *sizes)
    for wrong, rows in ((number, 19), (number + 1000, 20), (0, 20), (-1, 20)):
        with pytest.raises(RuntimeError, match="no rows have this number"):
            torch.ops.gossamer.rows_registered(weight.values().detach(), torch.randn(40), None, wrong, rows, 0)
    with pytest.raises(RuntimeError, match="crd must be"):
        torch.ops.gossamer.rows_register(*arrays, 200, *sizes[1:])
    native.forget(number)
    native.forget(number)  # nothing happens


@needs_kernels
def test_a_product_that_is_collected_is_forgotten(monkeypatch):
    numbers = []
    monkeypatch.setattr(native, "forget", numbers.append)
    weight = gs.sparsify(torch.randn(20, 40), "1:8", format=PackedNM(1, 8))
    product = RowsProduct(weight.structure, False)
    assert not numbers
    del product
    assert len(numbers) == 1
