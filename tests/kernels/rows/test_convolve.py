"""Convolutions by packed rows, which read pixels and no patches: against torch's dense ones."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer as gs
from gossamer import native
from gossamer.formats import PackedCSR, PackedNear, PackedNM
from gossamer.kernels.product import CODES
from gossamer.kernels.rows.operators import rows_of
from gossamer.ops.product import kernel_of

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels here")
FORMATS = [PackedCSR(), PackedCSR(240), PackedNear(), PackedNM(1, 8), PackedNM(2, 4)]


def integers(*shape):
    """Small whole numbers: sums are exact in any order."""
    return torch.randint(-4, 5, shape).float()


def weight_of(format, *shape):
    pattern = f"{format.n}:{format.m}" if isinstance(format, PackedNM) else "75%"
    whole = gs.sparsify(integers(*shape), pattern, format=gs.Dense())
    return whole, gs.from_dense(whole, format)


def without_gradients(*args, **options):
    with torch.no_grad():
        return F.conv2d(*args, **options)


def test_by_hand():
    w = gs.from_dense(torch.tensor([[[[0.0, 2.0], [3.0, 0.0]]]]), PackedCSR())
    x = torch.tensor([[[[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]]]])
    assert without_gradients(x, w).tolist() == [[[[26.0, 260.0]]]]  # 2 * 10 + 3 * 2, 2 * 100 + 3 * 20
    assert without_gradients(x, w, torch.tensor([0.5])).tolist() == [[[[26.5, 260.5]]]]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(FORMATS),
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 34)),
    st.tuples(st.integers(1, 20), st.integers(1, 40)),
    st.tuples(st.integers(1, 4), st.integers(1, 7)),
    st.tuples(st.integers(1, 3), st.integers(1, 4)),
    st.tuples(st.integers(0, 3), st.integers(0, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 2)),
)
def test_every_window(format, sizes, places, kernel, stride, padding, dilation):
    images, channels, rows = sizes
    height, width = (p + d * (k - 1) for p, d, k in zip(places, dilation, kernel, strict=True))
    whole, w = weight_of(format, rows, channels, *kernel)
    x, bias = integers(images, channels, height, width), integers(rows)
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    assert torch.equal(without_gradients(x, w, bias, **options), F.conv2d(x, whole, bias, **options))


@pytest.mark.parametrize("format", FORMATS, ids=repr)
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_groups(format, groups):
    whole, w = weight_of(format, 12, 4, 3, 3)
    x = integers(2, 4 * groups, 9, 10)
    assert torch.equal(without_gradients(x, w, padding=1, groups=groups), F.conv2d(x, whole, padding=1, groups=groups))


@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"stride": 2, "padding": 1}], ids=str)
def test_any_strides_of_the_input(options):
    whole, w = weight_of(PackedCSR(), 20, 6, 3, 3)
    x = integers(2, 6, 11, 12)
    views = {
        "channels last": x.to(memory_format=torch.channels_last),
        "transposed": x.transpose(2, 3).contiguous().transpose(2, 3),
        "every other one": integers(2, 6, 22, 24)[..., ::2, ::2],
        "expanded": x[:1].expand(3, -1, -1, -1),
        "an image": x[0],
        "part of one": integers(2, 8, 11, 12)[:, 1:7],
    }
    for name, view in views.items():
        assert torch.equal(without_gradients(view, w, **options), F.conv2d(view, whole, **options)), name


def test_nothing():
    whole, w = weight_of(PackedCSR(), 5, 3, 3, 3)
    x = torch.empty(0, 3, 8, 8)
    assert torch.equal(without_gradients(x, w, padding=(1, 2)), F.conv2d(x, whole, padding=(1, 2)))
    padded = without_gradients(torch.empty(1, 3, 8, 0), w, padding=(1, 2))  # torch refuses it with a dense weight
    assert torch.equal(padded, torch.zeros(1, 5, 8, 2))


def test_a_weight_without_entries_is_the_bias():
    w = gs.from_dense(torch.zeros(5, 3, 3, 3), PackedCSR())
    out = without_gradients(torch.randn(2, 3, 8, 8), w, torch.arange(5.0))
    assert torch.equal(out, torch.arange(5.0)[None, :, None, None].expand(2, 5, 6, 6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format", FORMATS, ids=repr)
def test_half_precision(format, dtype):
    whole, _ = weight_of(format, 20, 3, 3, 3)
    x, bias = integers(2, 3, 9, 9), integers(20)
    out = without_gradients(x.to(dtype), gs.from_dense(whole.to(dtype), format), bias.to(dtype), padding=1)
    assert out.dtype is dtype
    assert torch.equal(out, F.conv2d(x, whole, bias, padding=1).to(dtype))  # sums are float32, rounded once


def test_errors_are_bounded_by_theory():
    whole = gs.sparsify(torch.randn(64, 32, 3, 3), "90%", format=gs.Dense())
    x = torch.randn(2, 32, 15, 17)
    out = without_gradients(x, gs.from_dense(whole, PackedCSR()), padding=1).double()
    exact = F.conv2d(x.double(), whole.double(), padding=1)
    terms = int((whole != 0).flatten(1).sum(1).max())
    bound = terms * 2.0**-24 * F.conv2d(x.double().abs(), whole.double().abs(), padding=1)
    assert ((out - exact).abs() <= 1.01 * bound).all()


@pytest.mark.parametrize("format", FORMATS, ids=repr)
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_values_that_are_not_finite_stay_where_they_belong(format, value):
    whole, w = weight_of(format, 20, 4, 3, 3)
    x = integers(1, 4, 12, 40)
    x[0, 2, 5, 20] = value
    out = without_gradients(x, w, padding=1)
    touched = F.conv2d((~torch.isfinite(x)).float(), (whole != 0).float(), padding=1) > 0
    assert torch.equal(~torch.isfinite(out), touched)
    clean = F.conv2d(x.nan_to_num(0, 0, 0), whole, padding=1)
    assert torch.equal(out[~touched], clean[~touched])


@pytest.mark.parametrize("format", FORMATS, ids=repr)
def test_threads_change_no_bit(format):
    pattern = f"{format.n}:{format.m}" if isinstance(format, PackedNM) else "75%"
    w = gs.sparsify(torch.randn(64, 32, 3, 3), pattern, format=format)
    x, threads = torch.randn(3, 32, 13, 14), torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(without_gradients(x, w, stride=2, padding=1))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"stride": 2, "dilation": 2, "padding": 2}], ids=str)
def test_gradients(options):
    whole, w = weight_of(PackedCSR(), 20, 3, 3, 3)
    x, bias = integers(2, 3, 9, 8), integers(20)
    sparse = (x.clone().requires_grad_(), w.clone().requires_grad_(), bias.clone().requires_grad_())
    dense = (x.clone().requires_grad_(), whole.clone().requires_grad_(), bias.clone().requires_grad_())
    results = [F.conv2d(*operands, **options) for operands in (sparse, dense)]
    assert torch.equal(*results) and torch.equal(results[0], without_gradients(x, w, bias, **options))
    for out in results:
        out.square().sum().backward()
    assert torch.equal(sparse[0].grad, dense[0].grad) and torch.equal(sparse[2].grad, dense[2].grad)
    assert torch.equal(sparse[1].grad.to_dense(), dense[1].grad * w.mask())


def test_the_operator_keeps_torchs_rules():
    w = gs.sparsify(torch.randn(20, 3, 3, 3), "1:8", format=PackedNM(1, 8))
    arrays, sizes = rows_of(w.structure)
    window = (3, 3, 2, 1, 1, 2, 1, 0, 2, 1)
    args = (*arrays, w.values().detach(), torch.randn(2, 3, 9, 8), torch.randn(20), *sizes, *window, 1)
    torch.library.opcheck(torch.ops.gossamer.rows_conv2d, args)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": (3, 2)}, "cols must be channels"),
        ({"kernel": (0, 3)}, "must be positive"),
        ({"stride": (0, 1)}, "must be positive"),
        ({"dilation": (1, -1)}, "must be positive"),
        ({"padding": (0, -1, 0, 0)}, "not negative"),
        ({"dilation": (9, 1)}, "must not be larger"),
        ({"activation": 4}, "activation must be"),
        ({"x": torch.randn(2, 4, 9, 8)}, "cols must be channels"),
        ({"x": torch.randn(3, 9, 8)}, r"x must be \[images"),
        ({"x": torch.randn(2, 3, 9, 16)[..., ::2]}, "contiguous"),
        ({"x": torch.zeros(2, 3, 9, 8, dtype=torch.float64)}, "x must be float32"),
        ({"bias": torch.zeros(19)}, "bias must be"),
    ],
)
def test_bad_arguments_are_errors(change, message):
    w = gs.sparsify(torch.randn(20, 3, 3, 3), "75%", format=PackedCSR())
    arrays, sizes = rows_of(w.structure)
    given = {
        "x": torch.randn(2, 3, 9, 8), "bias": torch.randn(20), "kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1),
        "padding": (0, 0, 0, 0), "activation": 0,
    } | change  # fmt: skip
    window = (*given["kernel"], *given["stride"], *given["dilation"], *given["padding"], given["activation"])
    with pytest.raises(RuntimeError, match=message):
        torch.ops.gossamer.rows_conv2d(*arrays, w.values().detach(), given["x"], given["bias"], *sizes, *window)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_activations(activation):
    whole, w = weight_of(PackedCSR(), 20, 3, 3, 3)
    x, bias = torch.randn(2, 3, 9, 8), torch.randn(20)
    kernel = kernel_of(x, w.values(), w.structure)
    out = kernel.convolve(x, w.values().detach(), bias, (3, 3, 1, 1, 1, 1, 0, 0, 0, 0), CODES[activation])
    torch.testing.assert_close(out, getattr(F, activation)(F.conv2d(x, whole, bias)))


def test_a_trace_has_the_operator_and_dynamic_sizes():
    layer = torch.nn.Conv2d(4, 20, 3, padding=1, stride=2)
    layer = gs.sparsify_(layer, "75%", format=PackedCSR()).eval()
    with torch.no_grad():
        program = torch.export.export(
            layer, (torch.randn(2, 4, 9, 8),), dynamic_shapes={"input": {0: torch.export.Dim("n", min=1, max=64)}}
        )
        assert "rows_conv2d" in str(program.graph)
        x = torch.randn(5, 4, 9, 8)
        assert torch.equal(program.module()(x), layer(x))


def test_explain_says_that_there_are_no_patches():
    w = gs.sparsify(torch.randn(20, 3, 3, 3), "75%", format=PackedCSR())
    assert "pixels of the result are the tokens" in str(gs.explain(F.conv2d, torch.randn(1, 3, 9, 9), w))
