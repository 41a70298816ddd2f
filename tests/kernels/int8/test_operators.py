"""int8 products against exact integer arithmetic: every layout, size and instruction set; what is refused."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gossamer import native
from gossamer.kernels.int8 import operators
from gossamer.kernels.int8.layout import Layout, pack_as
from gossamer.kernels.int8.operators import Range, linear, quantize
from gossamer.kernels.int8.weight import Rounded, rounded
from tests.kernels.int8.exact import LAYOUTS, SHAPES, TOKENS, a_mask, a_weight, check_bits, levels, sums

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels")
U = 2.0**-24


def test_by_hand() -> None:
    weight = Rounded(torch.tensor([[2, 0, -3], [0, 127, 0]], dtype=torch.int8), torch.tensor([0.5, 1.0]))
    packed = pack_as(weight, weight.values != 0, Layout("lookup"))
    x_range = Range(torch.tensor([1.0]), torch.tensor([10], dtype=torch.int32))
    x = torch.tensor([[1.0, 2.0, 3.0], [-20.0, 300.0, 0.4]])  # -20 becomes -10, 300 becomes 244, 0.4 becomes 0
    out = linear(packed, x, torch.tensor([100.0, 0.0]), 2, x_range=x_range)
    assert out.tolist() == [[100 + (2 * 1 - 3 * 3) / 2, 254], [100 - 10, 127 * 244]]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_exact_to_the_last_bit(layout: Layout, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    for tokens in TOKENS:
        check_bits(layout, *shape, tokens)


@pytest.mark.parametrize("isa", ["amx", "avx512vbmi", "avx512vnni", "avxvnni", "avx2", "baseline"])
def test_every_instruction_set(isa: str) -> None:
    root = Path(__file__).parents[3]
    env = {**os.environ, "GOSSAMER_ISA": isa, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(root)])}
    worker = [sys.executable, "-m", "tests.kernels.int8.isa_worker"]
    run = subprocess.run(worker, env=env, cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    if run.stdout.strip() != isa:
        pytest.skip(f"this processor has no {isa}: {run.stdout.strip()} was tested")


@pytest.mark.parametrize("tokens", [1, 7, 40])
@pytest.mark.parametrize("cols", [1, 63, 64, 200])
def test_quantize_is_the_formula(tokens: int, cols: int) -> None:
    x = torch.randn(tokens, cols) * 10.0 ** torch.randint(-30, 30, (tokens, 1))
    q, found = quantize(x)
    want, scale, zero = levels(x)
    assert torch.equal(found.scale, scale) and torch.equal(found.zero, zero) and torch.equal(q, want)
    back = (q.double() - zero[:, None]) * scale[:, None].double()
    assert bool(((back - x).abs() <= scale[:, None] * 0.5001).all())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("activation", range(4))
def test_error_is_within_its_bound(layout: Layout, activation: int) -> None:
    mask = a_mask(70, 300, layout)
    weight = rounded(torch.randn(70, 300) * mask)
    packed, x, bias = pack_as(weight, mask, layout), torch.randn(20, 300) + 0.3, torch.randn(70)
    q, scale, zero = levels(x)
    product = sums(weight, q, zero) * weight.scale.double() * scale.double()[:, None]
    functions = (lambda y: y, torch.relu, torch.nn.functional.gelu, torch.nn.functional.silu)
    out = linear(packed, x, bias, 70, activation).double()
    size = product.abs() + bias.abs()  # converted, two scales, one sum; the activations' own error
    assert bool(((out - functions[activation](product + bias)).abs() <= (5 if not activation else 16) * U * size).all())
    assert torch.equal(
        out, linear(packed, x.repeat_interleave(2, 1)[:, ::2].contiguous(), bias, 70, activation).double()
    )


def test_bias_strides_and_types() -> None:
    mask = a_mask(33, 80, LAYOUTS[1])
    packed = pack_as(a_weight(33, 80, mask), mask, LAYOUTS[1])
    wide = torch.randn(9, 100)
    assert torch.equal(linear(packed, wide[:, :80], None, 33), linear(packed, wide[:, :80].contiguous(), None, 33))
    small = wide[:, :80].bfloat16()
    assert torch.equal(linear(packed, small, None, 33), linear(packed, small.float(), None, 33).bfloat16())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("tokens", [1, 100])
def test_same_bits_for_any_number_of_threads(layout: Layout, tokens: int) -> None:
    mask = a_mask(500, 700, layout)
    packed = pack_as(rounded(torch.randn(500, 700) * mask), mask, layout)
    x, bias, before = torch.randn(tokens, 700), torch.randn(500), torch.get_num_threads()
    found: list[Tensor] = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(linear(packed, x, bias, 500, 2))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_token_that_is_not_finite_gives_nan_alone(layout: Layout, bad: float) -> None:
    mask = a_mask(20, 70, layout)
    packed, x = pack_as(a_weight(20, 70, mask), mask, layout), torch.randn(19, 70)
    clean = linear(packed, x, None, 20)
    x[4, 69] = bad
    out = linear(packed, x, None, 20)
    assert bool(out[4].isnan().all())
    others = torch.arange(19) != 4
    assert torch.equal(out[others], clean[others])
    with pytest.raises(RuntimeError, match="not finite"):
        linear(packed, x, None, 20, out_range=Range(torch.ones(1), torch.zeros(1, dtype=torch.int32)))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_zero_and_tiny_tokens(layout: Layout) -> None:
    mask = a_mask(20, 70, layout)
    packed, bias = pack_as(a_weight(20, 70, mask), mask, layout), torch.randn(20)
    assert torch.equal(linear(packed, torch.zeros(3, 70), bias, 20), bias.expand(3, 20))
    torch.testing.assert_close(
        linear(packed, torch.full((3, 70), 1e-42), bias, 20), bias.expand(3, 20), rtol=0, atol=1e-30
    )
    assert not bool(linear(packed, torch.tensor([3e38, -3e38]).repeat(3, 35), bias, 20).isnan().any())


def test_eight_bits_from_layer_to_layer() -> None:
    mask = torch.ones(32, 64, dtype=torch.bool)
    packed, x = pack_as(rounded(torch.randn(32, 64)), mask, LAYOUTS[0]), torch.randn(5, 64)
    q, found = quantize(x)
    assert torch.equal(linear(packed, q, None, 32, x_range=found), linear(packed, x, None, 32))
    out, given = linear(packed, x, None, 32), Range(torch.tensor([0.1]), torch.tensor([127], dtype=torch.int32))
    want = ((out / 0.1).round() + 127).clamp(0, 254)
    assert float((linear(packed, x, None, 32, out_range=given).float() - want).abs().max()) <= 1


def test_operators_pass_torchs_own_checks() -> None:
    packed = pack_as(rounded(torch.randn(6, 12)), torch.ones(6, 12, dtype=torch.bool), LAYOUTS[0])
    x, given = torch.randn(5, 12), (torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32))
    ops = torch.ops.gossamer
    torch.library.opcheck(ops.int8_linear.default, (packed, x, torch.randn(6), 6, 1))
    torch.library.opcheck(ops.int8_linear_ranged.default, (packed, x, None, *given, None, None, 6, 0, 0))
    torch.library.opcheck(ops.int8_quantize.default, (x, None, None))


def test_what_is_refused() -> None:
    packed, x = pack_as(rounded(torch.ones(2, 3)), torch.ones(2, 3, dtype=torch.bool), LAYOUTS[0]), torch.ones(1, 3)
    int32 = torch.zeros(1, dtype=torch.int32)
    for match, call in {
        r"x must be float32": lambda: linear(packed, x.double(), None, 2),
        r"x must be .*cols": lambda: linear(packed, torch.ones(1, 4), None, 2),
        r"rows must be": lambda: linear(packed, x, None, 3),
        r"bias must be": lambda: linear(packed, x, torch.ones(3), 2),
        r"activation must be": lambda: linear(packed, x, None, 2, 4),
        r"no int8 weight": lambda: linear(torch.zeros(256, dtype=torch.uint8), x, None, 2),
        r"fill the weight": lambda: linear(packed[:-64], x, None, 2),
        r"positive normal": lambda: linear(packed, x, None, 2, x_range=Range(torch.zeros(1), int32)),
        r"zero of x must lie": lambda: linear(packed, x, None, 2, x_range=Range(torch.ones(1), int32 - 1)),
        r"uint8 needs": lambda: linear(packed, x.to(torch.uint8), None, 2),
    }.items():
        with pytest.raises(RuntimeError, match=match):
            call()
    assert operators.takes(x) is None and "float64" in str(operators.takes(x.double()))
