"""Convolutions in eight bits against exact integer arithmetic: sizes, both orders of images, gradients, bad input."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gossamer import native
from gossamer.kernels.int8.convolution import int8_conv2d, matrix_of, weight_of
from gossamer.kernels.int8.layout import Layout, pack_as
from gossamer.kernels.int8.operators import ACTIVATIONS
from gossamer.kernels.int8.weight import Range, Rounded, rounded, with_range
from tests.kernels.int8.exact import LAYOUTS, a_mask, a_weight, levels

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels")
ORDERS = [torch.contiguous_format, torch.channels_last]
PLAIN = (1, 1, 1, 1, 0, 0, 0, 0)  # stride, dilation, padding


def exact(weight: Rounded, x: Tensor, window: tuple[int, ...]) -> Tensor:
    """The convolution of the levels of each image by 64-bit integers, scaled in double precision."""
    q, scale, zero = levels(x.flatten(1))
    whole = (q.long() - zero[:, None]).view(x.shape).double()
    values = weight_of(weight.values, (window[0], window[1])).double()
    sums = F.conv2d(F.pad(whole, window[6:]), values, None, window[2:4], 0, window[4:6])
    return sums * weight.scale.double()[:, None, None] * scale.double()[:, None, None, None]


def test_by_hand() -> None:
    weight = Rounded(matrix_of(torch.tensor([[[[1, 0, -2]]]], dtype=torch.int8)), torch.tensor([0.5]))
    packed = with_range(pack_as(weight, weight.values != 0, Layout("lookup")), Range(1.0, 10))
    x = torch.tensor([[[[3.0, 7.0, 300.0, -99.0]]]])  # 300 becomes 244, -99 becomes -10
    out = int8_conv2d(x, packed, 1, (1, 3, 1, 1, 1, 1, 1, 1, 0, 0), torch.tensor([100.0]))
    assert out.tolist() == [[[[100 - 7, 100 + (3 - 488) / 2, 100 + (7 + 20) / 2, 100 + 122]]]]


def test_matrix_has_the_channels_of_a_position_side_by_side() -> None:
    weight = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)
    matrix = matrix_of(weight)
    assert matrix.shape == (2, 60) and int(matrix[1, (2 * 5 + 4) * 3 + 1]) == int(weight[1, 1, 2, 4])


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_groups_read_their_own_channels(groups: int) -> None:
    weight, x = torch.randn(6, 2, 3, 2), torch.randn(2, 2 * groups, 5, 5)
    whole = weight_of(matrix_of(weight, groups), (3, 2))
    torch.testing.assert_close(F.conv2d(x, whole), F.conv2d(x, weight, groups=groups))
    assert torch.equal(weight_of(matrix_of(weight, groups), (3, 2), groups), weight)


@st.composite
def convolutions(draw: Any) -> tuple[Any, ...]:
    kernel, stride = (
        (draw(st.integers(1, 4)), draw(st.integers(1, 4))),
        (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
    )
    dilation, padding = (
        (draw(st.integers(1, 2)), draw(st.integers(1, 2))),
        tuple(draw(st.integers(0, 3)) for _ in range(4)),
    )
    least = [
        max(d * (k - 1) + 1 - sum(pad), 1)
        for d, k, pad in zip(dilation, kernel, (padding[2:], padding[:2]), strict=True)
    ]
    height, width = (draw(st.integers(low, low + 12)) for low in least)
    images, channels, rows = (
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 3, 16, 17, 40])),
        draw(st.integers(1, 40)),
    )
    window = (*kernel, *stride, *dilation, *padding)
    order, layout = draw(st.sampled_from(ORDERS)), draw(st.sampled_from(LAYOUTS))
    return (
        (images, channels, height, width),
        rows,
        window,
        order,
        layout,
        draw(st.integers(1, 2)),
        draw(st.integers(0, 99)),
    )


@given(convolutions())
def test_exact_sums_for_any_sizes(case: tuple[Any, ...]) -> None:
    shape, rows, window, order, layout, threads, seed = case
    torch.manual_seed(seed)
    cols = shape[1] * window[0] * window[1]
    mask = a_mask(rows, cols, layout)
    weight = a_weight(rows, cols, mask)
    x, bias = torch.randn(shape).contiguous(memory_format=order), torch.randn(rows)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        out = int8_conv2d(x, pack_as(weight, mask, layout), rows, window, bias)
    finally:
        torch.set_num_threads(before)
    product = exact(weight, x, window)
    want = product + bias.double()[:, None, None]
    bound = 5 * 2.0**-24 * (product.abs() + bias.double().abs()[:, None, None])
    assert out.shape == want.shape and bool(((out.double() - want).abs() <= bound).all())
    assert out.is_contiguous(memory_format=torch.contiguous_format if x.is_contiguous() else torch.channels_last)


@pytest.mark.parametrize("order", ORDERS, ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_types(order: torch.memory_format, activation: str) -> None:
    mask = torch.rand(20, 5 * 9) < 0.4
    packed = pack_as(rounded(torch.randn(20, 45) * mask), mask, Layout("lookup"))
    x, bias, window = torch.randn(2, 5, 9, 8).contiguous(memory_format=order), torch.randn(20), (3, 3, *PLAIN)
    plain = int8_conv2d(x, packed, 20, window, bias)
    known = {"none": plain, "relu": F.relu(plain), "gelu": F.gelu(plain), "silu": F.silu(plain)}
    torch.testing.assert_close(
        int8_conv2d(x, packed, 20, window, bias, activation), known[activation], rtol=1e-5, atol=1e-6
    )
    half = x.bfloat16()
    assert torch.equal(
        int8_conv2d(half, packed, 20, window, bias), int8_conv2d(half.float(), packed, 20, window, bias).bfloat16()
    )
    assert int8_conv2d(x.double(), packed, 20, window, bias).dtype is torch.float64


def test_both_orders_and_any_strides_give_the_same_bits() -> None:
    mask = torch.rand(33, 20 * 4) < 0.4
    packed = pack_as(rounded(torch.randn(33, 80) * mask), mask, Layout("lookup"))
    x, window = torch.randn(3, 20, 11, 13), (2, 2, *PLAIN)
    out = int8_conv2d(x, packed, 33, window)
    for other in (x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)):
        assert not other.is_contiguous() and torch.equal(int8_conv2d(other, packed, 33, window), out)
    one_by_one = torch.cat([int8_conv2d(image[None], packed, 33, window) for image in x])
    assert torch.equal(one_by_one, out)  # an image has a range of its own


@pytest.mark.parametrize("order", ORDERS, ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_image_that_is_not_finite_gives_nan_alone(order: torch.memory_format, bad: float) -> None:
    mask = torch.rand(17, 18) < 0.5
    packed = pack_as(rounded(torch.randn(17, 18) * mask), mask, Layout("lookup"))
    x, window = torch.randn(3, 2, 6, 6), (3, 3, *PLAIN)
    good = int8_conv2d(x, packed, 17, window)
    x[1, 1, 2, 3] = bad
    out = int8_conv2d(x.contiguous(memory_format=order), packed, 17, window)
    assert bool(out[1].isnan().all()) and torch.equal(out[[0, 2]], good[[0, 2]])


def test_zeros_and_tiny_values_give_the_bias() -> None:
    packed, bias = pack_as(rounded(torch.randn(3, 9)), torch.ones(3, 9).bool(), Layout("dense")), torch.randn(3)
    for x in (torch.zeros(1, 1, 4, 4), torch.full((1, 1, 4, 4), 1e-42)):
        out = int8_conv2d(x, packed, 3, (3, 3, *PLAIN[:4], 1, 1, 1, 1), bias)
        assert torch.equal(out, bias.view(1, 3, 1, 1).expand_as(out))


def test_no_images() -> None:
    packed = pack_as(rounded(torch.randn(3, 2)), torch.ones(3, 2).bool(), Layout("dense"))
    assert int8_conv2d(torch.zeros(0, 2, 4, 4), packed, 3, (1, 1, *PLAIN)).shape == (0, 3, 4, 4)


def test_gradients_are_those_without_rounding() -> None:
    weight = torch.randn(4, 3, 3, 3)
    packed = pack_as(rounded(matrix_of(weight)), matrix_of(weight) != 0, Layout("dense"))
    stored = weight_of(rounded(matrix_of(weight)).values.float() * rounded(matrix_of(weight)).scale[:, None], (3, 3))
    x, bias = torch.randn(2, 3, 7, 7, requires_grad=True), torch.randn(4, requires_grad=True)
    out = int8_conv2d(x, packed, 4, (3, 3, 2, 2, *PLAIN[2:]), bias, "relu")
    with torch.no_grad():
        same = int8_conv2d(x, packed, 4, (3, 3, 2, 2, *PLAIN[2:]), bias, "relu")
    torch.testing.assert_close(out, same, rtol=1e-5, atol=1e-5)
    (out * 2).sum().backward()
    grad, shift = x.grad, bias.grad
    other, other_bias = x.detach().requires_grad_(), bias.detach().requires_grad_()
    passes = (same > 0).float()
    (F.conv2d(other, stored, other_bias, 2) * passes * 2).sum().backward()
    torch.testing.assert_close(grad, other.grad)
    torch.testing.assert_close(shift, other_bias.grad)


def test_operator_check() -> None:
    mask = torch.rand(8, 12) < 0.5
    packed = pack_as(rounded(torch.randn(8, 12) * mask), mask, Layout("lookup"))
    for order in ORDERS:
        x = torch.randn(2, 3, 5, 6).contiguous(memory_format=order)
        arguments = (packed, x, torch.randn(8), None, None, None, 8, 2, 2, *PLAIN, 1)
        torch.library.opcheck(torch.ops.gossamer.int8_conv2d.default, arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(1, 4, 4, 4)}, "cols must be"),
        ({"x": torch.zeros(1, 3, 1, 4)}, "larger than the padded input"),
        ({"x": torch.zeros(3, 4, 4)}, "x must be"),
        ({"x": torch.zeros(1, 3, 8, 8)[:, :, ::2, ::2]}, "contiguous or channels_last"),
        ({"x": torch.zeros(1, 3, 4, 4, dtype=torch.float64)}, "float32, bfloat16 or uint8"),
        ({"rows": 7}, "rows must be"),
        ({"bias": torch.zeros(3)}, "bias must be"),
        ({"sizes": (2, 2, 0, 1, *PLAIN[2:])}, "must be positive"),
        ({"sizes": (2, 2, *PLAIN[:7], -1)}, "must be positive"),
        ({"sizes": (2, 2, *PLAIN[:7], 2**40)}, "less than"),
        ({"activation": 4}, "activation must be"),
        ({"add": torch.zeros(1, 8, 3, 3)}, "channels_last"),
        ({"add": torch.zeros(1, 8, 3, 4).contiguous(memory_format=torch.channels_last)}, "shape of the output"),
        (
            {"add": torch.zeros(1, 8, 3, 3).contiguous(memory_format=torch.channels_last).double()},
            "add must be float32",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    packed = pack_as(rounded(torch.randn(8, 12)), torch.ones(8, 12).bool(), Layout("dense"))
    given: dict[str, Any] = {
        "x": torch.zeros(1, 3, 4, 4),
        "bias": None,
        "add": None,
        "rows": 8,
        "sizes": (2, 2, *PLAIN),
        "activation": 0,
    }
    given |= change
    with pytest.raises(RuntimeError, match=message):
        torch.ops.gossamer.int8_conv2d(
            packed,
            given["x"],
            given["bias"],
            given["add"],
            None,
            None,
            given["rows"],
            *given["sizes"],
            given["activation"],
        )


def test_bytes_come_in_and_go_out() -> None:
    mask = torch.rand(40, 20 * 4) < 0.4
    weight, window = rounded(torch.randn(40, 80) * mask), (2, 2, *PLAIN[:4], 1, 0, 1, 0)
    packed = with_range(pack_as(weight, mask, Layout("lookup")), Range(0.0625, 90))
    q = torch.randint(0, 255, (3, 20, 9, 7), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)

    def convolution(x: Tensor, *out: Tensor | None) -> Tensor:
        return torch.ops.gossamer.int8_conv2d(packed, x, None, None, *(out or (None, None)), 40, *window, 1)

    floats, given = convolution((q.float() - 90) * 0.0625), (torch.tensor([0.5]), torch.tensor([30], dtype=torch.int32))
    assert torch.equal(convolution(q), floats)
    out = convolution(q, *given)
    assert out.dtype is torch.uint8 and torch.equal(out, ((floats * 2.0).round() + 30).clamp(0, 254).to(torch.uint8))
    assert torch.equal(convolution(torch.full_like(q, 255)), convolution(torch.full_like(q, 254)))
    with pytest.raises(RuntimeError, match="must be channels_last"):
        convolution(q.contiguous())
    with pytest.raises(RuntimeError, match="not finite"):
        convolution(torch.full_like(q, math.inf, dtype=torch.float32), *given)
    packed = pack_as(weight, mask, Layout("dense"))
    with pytest.raises(RuntimeError, match="must have its range"):
        convolution(q)


@pytest.mark.parametrize("how", ["floats", "planes", "bytes", "bytes out"])
@pytest.mark.parametrize(("rows", "activation"), [(40, 0), (40, 1), (16, 2), (7, 3), (33, 0)])
def test_what_is_added_comes_before_the_activation(how: str, rows: int, activation: int) -> None:
    mask = torch.rand(rows, 20 * 4) < 0.4
    window = (2, 2, *PLAIN[:4], 1, 0, 1, 0)
    q = torch.randint(0, 255, (3, 20, 9, 7), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    x = q if how.startswith("bytes") else (q.float() - 90) * 0.0625
    x = x.contiguous() if how == "planes" else x
    given = (torch.tensor([0.5]), torch.tensor([30], dtype=torch.int32)) if how == "bytes out" else (None, None)
    add, bias = torch.randn(3, rows, 9, 7).contiguous(memory_format=torch.channels_last), torch.randn(rows)
    for layout in (Layout("lookup"), Layout("dense")):
        packed = with_range(pack_as(rounded(torch.randn(rows, 80) * mask), mask, layout), Range(0.0625, 90))

        def convolution(add: Tensor | None, *rest: Any, packed: Tensor = packed) -> Tensor:
            return torch.ops.gossamer.int8_conv2d(packed, x, bias, add, *rest)

        plain = convolution(None, None, None, rows, *window, 0) + add
        expected = (plain, F.relu(plain), F.gelu(plain), F.silu(plain))[activation]
        out = convolution(add, *given, rows, *window, activation)
        assert out.is_contiguous(memory_format=torch.channels_last)
        if how == "bytes out":
            expected = ((expected * 2.0).round() + 30).clamp(0, 254)
        close = {"rtol": 1e-5, "atol": 1.0 if how == "bytes out" and activation > 1 else 1e-6}
        torch.testing.assert_close(out.float(), expected, **(close if activation > 1 else {"rtol": 0, "atol": 0}))
    torch.library.opcheck(torch.ops.gossamer.int8_conv2d.default, (packed, x, bias, add, *given, rows, *window, 1))


def test_integers_are_refused() -> None:
    packed = pack_as(rounded(torch.randn(8, 12)), torch.ones(8, 12).bool(), Layout("dense"))
    with pytest.raises(TypeError, match=r"x\.float"):
        int8_conv2d(torch.zeros(1, 3, 4, 4, dtype=torch.int32), packed, 8, (2, 2, *PLAIN))
